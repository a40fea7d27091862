"""Training by several processes: they share the work on the layers, and end with equal weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spectralclip._models import FoundLayer, is_sharded_tensor, reshard_
from spectralclip._training.distributed.consensus import Report, agree
from spectralclip._training.distributed.layout import group_of
from spectralclip._training.distributed.process_group import ProcessGroup, fingerprints
from spectralclip._training.distributed.sharded import Sharded
from spectralclip._training.distributed.sharing import (
    Alone,
    Divided,
    Moved,
    Sharing,
    is_trained,
    project_momenta_,
)
from spectralclip._training.optimizers import Optimizers

# Replicas are compared at the first steps, when what is missing in a loop shows, and then rarely.
FIRST_CHECKS, CHECK_EVERY = 2, 100


def sharing_of(
    model: nn.Module,
    layers: Mapping[str, FoundLayer],
    optimizers: Optimizers,
    *,
    divides: bool,
    claims: Mapping[str, object],
) -> Sharing:
    """How the work on the layers is to be shared by the processes that there are.

    `divides` says whether a process may leave layers to others, and `claims`, by what they are
    about, are what has to be the same in every process.

    Raises:
        DisagreementError: The processes do not bring the same model, method or bounds.
        ValueError: The weights are sharded in a way that is not supported.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Alone(layers, optimizers)
    _refuse_flat_parameters(model)
    reshard_(model)
    parameters = [p for layer in layers.values() for p in layer.parameters()]
    is_sharded = any(map(is_sharded_tensor, parameters))
    if dist.get_world_size() == 1 and not is_sharded:
        return Alone(layers, optimizers)
    device = parameters[0].device
    processes = group_of(model, layers) if is_sharded else ProcessGroup(None, device)
    agree(processes, {**claims, **_descriptions(layers, optimizers)})
    if is_sharded and not divides:
        raise ValueError(
            "The method has to see every layer in every process, and the weights are sharded by "
            "fully_shard, so that no process has them: use DistributedDataParallel, or another "
            "method."
        )
    if is_sharded:
        return Sharded(processes, model, layers, optimizers)
    return Replicated(processes, layers, optimizers) if divides else Alone(layers, optimizers)


@final
class Replicated(Divided):
    """Processes with equal copies of the weights, as `DistributedDataParallel` leaves them.

    Each layer has an owner, who works on it in place. Afterwards the weights and the momentum
    that have changed are sent to the others, bit for bit, and nothing else is.
    """

    def __init__(
        self, group: ProcessGroup, layers: Mapping[str, FoundLayer], optimizers: Optimizers
    ) -> None:
        super().__init__(group, layers, optimizers)
        self._numbers = {id(p): n for n, p in enumerate(self._assignment.parameters)}
        self._projected: dict[int, int] = {}
        self._rounds = 0
        self._assignment.reach_consensus(Report("attach()", facts=self._prints()))

    def mine(self) -> Mapping[str, FoundLayer]:
        return self._assignment.mine

    def weights(self) -> Mapping[str, Sequence[Tensor]]:
        return {name: layer.weights() for name, layer in self._assignment.layers.items()}

    def project_momenta(self, moved: Sequence[Moved]) -> None:
        """Change what the optimizer remembers here; the others hear of it after the work."""
        for parameter in project_momenta_(self.optimizers, moved):
            momentum = self.optimizers.momentum_of(parameter)
            assert momentum is not None
            # The others may have no buffer to tell its size from.
            self._projected[self._numbers[id(parameter)]] = momentum.buffer.element_size()

    def carry_out(self, work: Callable[[], dict[str, Any]], label: str) -> dict[str, Any]:
        """Work on the layers of this process, and send what has changed to the others."""
        assignment = self._assignment
        self._rounds += 1
        is_due = self._rounds <= FIRST_CHECKS or self._rounds % CHECK_EVERY == 0
        facts = self._prints() if is_due else ()
        if self._statistics.differ:
            # Who is elsewhere would not take part in what follows.
            assignment.reach_consensus(Report(f"the start of {label}", facts=facts))
        self._projected = {}
        versions = [p._version for p in assignment.parameters]
        with self._statistics.synchronized():
            report = assignment.attempt(work, label)
        report.facts, report.projected = facts, self._projected
        report.changed = {
            n for n, p in enumerate(assignment.parameters) if p._version != versions[n]
        }
        together = assignment.reach_consensus(report)
        self._spread(together)
        return together.outcome()

    def _spread(self, together: Report) -> None:
        """Send what has changed from its owners to the others."""
        assignment = self._assignment
        sent: dict[int, list[Tensor]] = {}
        for n in sorted(together.changed):
            sent.setdefault(assignment.owners[n], []).append(assignment.parameters[n].detach())
        for n, size in sorted(together.projected.items()):
            sent.setdefault(assignment.owners[n], []).append(self._buffer(n, size))
        assignment.group.broadcast(sent)

    def _buffer(self, number: int, size: int) -> Tensor:
        """The momentum of a parameter, or a tensor of that size where there is none."""
        parameter = self._assignment.parameters[number]
        momentum = self.optimizers.momentum_of(parameter)
        if momentum is not None:
            return momentum.buffer
        return torch.empty((*parameter.shape, size), dtype=torch.uint8, device=parameter.device)

    def _prints(self) -> list[int]:
        parameters = self._assignment.parameters
        return fingerprints(
            [[parameters[n] for n in own] for own in self._assignment.numbers.values()]
        )


def _descriptions(layers: Mapping[str, FoundLayer], optimizers: Optimizers) -> dict[str, object]:
    """What has to be the same of layers that have been found in each process."""
    claims: dict[str, object] = {"layers": list(layers), "optimizer": optimizers.names}
    for name, layer in layers.items():
        shapes = [[tuple(p.shape), str(p.dtype)] for p in layer.parameters()]
        claims[f"shapes of the weights of layer {name!r}"] = shapes
        claims[f"shapes of the inputs of layer {name!r}"] = layer.in_shapes
        claims[f"training of layer {name!r}"] = is_trained(
            layer, layer.weights(), optimizers.held()
        )
    return claims


def _refuse_flat_parameters(model: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for name, module in model.named_modules():
        if isinstance(module, fsdp.FullyShardedDataParallel):
            raise ValueError(
                f"Submodule {name!r} is wrapped in FullyShardedDataParallel, whose weights cannot "
                "be told apart by layer: shard the model with "
                "torch.distributed.fsdp.fully_shard instead."
            )
