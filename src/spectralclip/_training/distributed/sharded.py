"""Sharded weights: each layer is put together in one process, worked on, and handed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._models import FoundLayer, local, reshard_, stand_in
from spectralclip._training.distributed.consensus import Assignment, Report
from spectralclip._training.distributed.layout import Layout, layout_of
from spectralclip._training.distributed.process_group import ProcessGroup
from spectralclip._training.distributed.sharing import Divided, Moved
from spectralclip._training.momentum import Momentum, Part, project_outward_, whole_and_part
from spectralclip._training.optimizers import Optimizers

_FLAGS = ("requires_grad flags", "Freeze and unfreeze layers on every rank alike.")


@final
class Sharded(Divided):
    """Processes that each hold a part of every weight, as `fully_shard` leaves them.

    The owner of a layer has a module like the model's with whole weights, and no process has
    those of the whole model. Before the work the owners get the parts of their layers, and
    nothing else is gathered; after it the others get their parts of what has changed.
    """

    def __init__(
        self,
        group: ProcessGroup,
        model: nn.Module,
        layers: Mapping[str, FoundLayer],
        optimizers: Optimizers,
    ) -> None:
        super().__init__(group, layers, optimizers)
        self._model = model
        self._layouts = [layout_of(p, group.ranks) for p in self._assignment.parameters]
        # Later, the modules may have weights that a forward pass has gathered.
        self._weights = {name: layer.weights() for name, layer in layers.items()}
        self._directions: dict[int, list[tuple[Part | None, Tensor]]] = {}
        self._wholes = {
            n: nn.Parameter(_like(parameter), parameter.requires_grad)
            for n, parameter in enumerate(self._assignment.parameters)
            if self._assignment.owners[n] == group.rank
        }
        self._numbers = {id(whole): n for n, whole in self._wholes.items()}
        own = {id(self._assignment.parameters[n]): whole for n, whole in self._wholes.items()}
        self._mine = {
            name: replace(
                layer, modules=tuple(stand_in(m, lambda p: own[id(p)]) for m in layer.modules)
            )
            for name, layer in self._assignment.mine.items()
        }
        self._gather(range(len(self._layouts)))

    def mine(self) -> Mapping[str, FoundLayer]:
        return self._mine

    def weights(self) -> Mapping[str, Sequence[Tensor]]:
        return self._weights

    def project_momenta(self, moved: Sequence[Moved]) -> None:
        """Note the change: it is done after the work, when the momentum has been gathered."""
        for parameters, directions in moved:
            for parameter, direction in zip(parameters, directions, strict=True):
                whole, part = whole_and_part(parameter)
                noted = self._directions.setdefault(self._numbers[id(whole)], [])
                noted.append((part, direction))

    def carry_out(self, work: Callable[[], dict[str, Any]], label: str) -> dict[str, Any]:
        """Gather the layers that move at their owners, work, and hand out what has changed."""
        assignment = self._assignment
        reshard_(self._model)
        moving = set(self.moving())
        facts = [int(name in moving) for name in assignment.layers]
        assignment.reach_consensus(Report(f"the start of {label}", facts=facts, about=_FLAGS))
        needed = {n for name in moving for n in assignment.numbers[name]}
        self._gather(sorted(needed))
        versions = {n: whole._version for n, whole in self._wholes.items()}
        with self._statistics.synchronized():
            report = assignment.attempt(work, label)
        report.changed = {n for n, v in versions.items() if self._wholes[n]._version != v}
        report.projected = dict.fromkeys(self._directions, 1)
        together = assignment.reach_consensus(report)
        self._hand_out(sorted(together.changed), sorted(together.projected))
        return together.outcome()

    def _gather(self, numbers: Sequence[int]) -> None:
        """Bring the wholes of some weights up to date, at their owners."""
        post = _Post(self._assignment, self._layouts)
        for n in numbers:
            parameter, whole = self._assignment.parameters[n], self._wholes.get(n)
            post.to_owner(n, parameter, whole)
            if whole is not None:
                whole.requires_grad_(parameter.requires_grad)
        post.send()

    @torch.no_grad()
    def _hand_out(self, changed: Sequence[int], projected: Sequence[int]) -> None:
        """Bring the parts of changed weights up to date, and project the momentum in between."""
        assignment, rank = self._assignment, self._assignment.group.rank
        there, back = (_Post(assignment, self._layouts) for _ in range(2))
        for n in changed:
            there.from_owner(n, assignment.parameters[n], self._wholes.get(n))
        wholes: dict[int, Momentum] = {}
        for n in projected:
            momentum = self.optimizers.momentum_of(assignment.parameters[n])
            if momentum is None:
                continue
            if assignment.owners[n] == rank:
                squares = None if momentum.squares is None else _like(momentum.squares)
                wholes[n] = Momentum(_like(momentum.buffer), squares, momentum.eps)
            whole = wholes.get(n)
            there.to_owner(n, momentum.buffer, whole and whole.buffer)
            if momentum.squares is not None:
                there.to_owner(n, momentum.squares, whole and whole.squares)
            back.from_owner(n, momentum.buffer, whole and whole.buffer)
        there.send()
        directions, self._directions = self._directions, {}
        try:
            for n, momentum in wholes.items():
                for part, direction in directions[n]:
                    project_outward_([[momentum.within(part)]], [[direction]])
        finally:
            back.send()


@final
class _Post:
    """Parts of tensors on their way to the owners of wholes, or back, in one message."""

    def __init__(self, assignment: Assignment, layouts: Sequence[Layout]) -> None:
        self._assignment, self._layouts = assignment, layouts
        self._outgoing: list[list[Tensor]] = [[] for _ in range(assignment.group.size)]
        self._incoming: list[list[Tensor]] = [[] for _ in range(assignment.group.size)]
        self._is_empty = True

    def to_owner(self, number: int, part: Tensor, whole: Tensor | None) -> None:
        """Have the whole written, which is with the owner of a parameter, by the parts."""
        layout, owner = self._layouts[number], self._assignment.owners[number]
        group = self._assignment.group
        if layout.gives(group.rank, owner):
            self._outgoing[owner].append(local(part))
        if whole is not None:
            for rank in filter(lambda rank: layout.gives(rank, owner), range(group.size)):
                self._incoming[rank].append(layout.part(whole.detach(), rank))
        self._is_empty = False

    def from_owner(self, number: int, part: Tensor, whole: Tensor | None) -> None:
        """Have the parts written by the whole."""
        layout, owner = self._layouts[number], self._assignment.owners[number]
        group = self._assignment.group
        if whole is not None:
            for rank in range(group.size):
                self._outgoing[rank].append(layout.part(whole.detach(), rank))
        self._incoming[owner].append(local(part))
        self._is_empty = False

    def send(self) -> None:
        """Exchange all of them, if any process has any."""
        if not self._is_empty:
            self._assignment.group.deliver(self._outgoing, self._incoming)


def _like(tensor: Tensor) -> Tensor:
    """An empty plain tensor of the whole shape."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=local(tensor).device)
