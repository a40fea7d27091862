"""A method on its way through training runs that somebody else's loop conducts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from spectralclip._clipping import ClipResult, Targets, layer_targets
from spectralclip._models import ExampleInputs, FoundLayer, Pairs, find_layers
from spectralclip._training import Attachment, Method, Schedule, attach, weights_of

Certify: TypeAlias = bool | Literal["deterministic"]


@final
class Run:
    """What the callbacks have in common: attachments from the start of a run to its end.

    There is one attachment for each optimizer that has a layer to move. All of them together
    have one state, which outlives them: checkpoints are also written after the end.

    Attributes:
        results: What the latest finalization did, by layer.
    """

    def __init__(
        self,
        method: Method,
        *,
        max_norm: Targets,
        schedule: Schedule | None,
        pairs: Pairs,
        seed: int,
        finalize: bool,
        certify: Certify,
    ) -> None:
        if not isinstance(method, Method):
            raise TypeError(f"method must be a Method such as SpectralClip(), got {method!r}.")
        if certify and not finalize:
            raise ValueError(
                f"certify={certify!r} is about how layers are finalized: pass finalize=True too."
            )
        self.method, self.results = method, dict[str, ClipResult]()
        self._max_norm, self._schedule, self._seed = max_norm, schedule, seed
        self._pairs, self._finalize, self._certify = tuple(pairs), finalize, certify
        self._attachments: dict[str, Attachment] = {}
        self._latest: dict[str, Any] = {}

    @property
    def attachments(self) -> list[Attachment]:
        """Those at work now."""
        return list(self._attachments.values())

    def start(
        self,
        model: nn.Module,
        example_inputs: ExampleInputs,
        optimizers: Sequence[Optimizer],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Attach to each optimizer, and go on from a state if there is one."""
        self.remove()  # what a run that broke off has left behind
        self._latest = {}
        inputs = moved(example_inputs, next((p.device for p in model.parameters()), None))
        try:
            shares = self._shares(model, inputs, optimizers)
            for index, (optimizer, share) in enumerate(zip(optimizers, shares, strict=True)):
                if share != {}:
                    self._attachments[str(index)] = attach(
                        self.method,
                        model,
                        inputs,
                        optimizer,
                        max_norm=share,
                        schedule=self._schedule,
                        pairs=self._pairs,
                        seed=self._seed,
                    )
            if state:
                self._load(state)
        except BaseException:
            self._detach()
            raise

    def penalty(self) -> Tensor:
        """The penalties of all attachments; zero while there are none."""
        penalties = [attachment.penalty() for attachment in self.attachments]
        return torch.stack(penalties).sum() if penalties else torch.zeros(())

    def norms(self) -> dict[str, float]:
        """The latest norm of each layer."""
        return {n: norm for one in self.attachments for n, norm in one.norms().items()}

    def steps(self) -> int:
        """How many steps the optimizers have done in all."""
        return sum(attachment.steps for attachment in self.attachments)

    def state_dict(self) -> dict[str, Any]:
        """The state by optimizer: that of now, or that at the end of the latest run."""
        if self._attachments:
            self._latest = {index: one.state_dict() for index, one in self._attachments.items()}
        return dict(self._latest)

    def end(self) -> None:
        """The end of a run, as it should be: finalize if that was asked for, and remove."""
        self.state_dict()
        try:
            if self._finalize:
                self.results = {}
                for attachment in self.attachments:
                    self.results |= attachment.finalize(certify=self._certify)
        finally:
            self._detach()

    def remove(self) -> None:
        """Remove without finalizing, as after an exception."""
        # Several processes gather their state together, and others may be gone by now.
        if not _among_others():
            self.state_dict()
        self._detach()

    def _detach(self) -> None:
        for attachment in self.attachments:
            attachment.remove()
        self._attachments = {}

    def _load(self, state: Mapping[str, Any]) -> None:
        if list(state) != list(self._attachments):
            raise ValueError(
                f"The checkpoint has the norms' state of the optimizers {list(state)}, but now "
                f"those with layers to keep are {list(self._attachments)}: resume with the "
                "optimizers and the max_norm that the checkpoint was made with."
            )
        for index, attachment in self._attachments.items():
            attachment.load_state_dict(state[index])

    def _shares(
        self, model: nn.Module, example_inputs: ExampleInputs, optimizers: Sequence[Optimizer]
    ) -> list[Targets]:
        """The bounds of each optimizer's own layers.

        A layer of one optimizer is no business of the others, whose attachments would add its
        penalty once more. A layer of none may get into any of them later.
        """
        if len(optimizers) == 1:
            return [self._max_norm]
        found = find_layers(model, example_inputs, self.method.composes, pairs=self._pairs)
        layers = {name: layer for name, layer in found.items() if self.method.takes(layer)}
        targets = layer_targets(layers, self._max_norm)
        owned = [{n for n in targets if _holds(optimizer, layers[n])} for optimizer in optimizers]
        shares: list[Targets] = []
        for own in owned:
            others = set[str]().union(*owned) - own
            shares.append({n: bound for n, bound in targets.items() if n not in others})
        if all(share == {} for share in shares):
            raise ValueError(
                f"{type(self.method).__name__} found no layer to take care of among {list(found)}: "
                "skipped_layers says what else there is in the model, and why it is left out."
            )
        return shares


def moved(inputs: ExampleInputs, device: torch.device | None) -> ExampleInputs:
    """Example inputs on a device."""
    plain = dict(inputs) if isinstance(inputs, Mapping) else inputs  # such as a BatchEncoding
    on_device: ExampleInputs = tree_map_only(Tensor, lambda x: x.to(device), plain)
    return on_device


def _holds(optimizer: Optimizer, layer: FoundLayer) -> bool:
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(weight) in known for weight in weights_of(layer))


def _among_others() -> bool:
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
