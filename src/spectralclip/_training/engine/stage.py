"""One clipping step of groups that have no weight in common: a fixed sequence of operations.

The step is a function of tensors. It branches on nothing that they hold and reads nothing back, so
that it runs on the meta device, compiles as one graph, and never makes a host wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from spectralclip._training.engine.group import Group, Kind, broadcast, joined, slices
from spectralclip._training.engine.small import TINY, largest
from spectralclip._training.engine.tuning import TUNING

REFRESHES = 3  # at weights of which the host wants to know the norm
SMALL = 0.1  # times the bound: what grows below it does not grow beyond the bound
TAMED = 16.0  # times the bound: entries up to which squares are precise in float32


@final
class Stage:
    """Groups that step together, and what is known of all their kernels.

    The kernels of all groups stand one behind another in each of the tensors.

    Attributes:
        groups: Of all kinds.
        slices: Where their kernels are.
        bounds: Of each kernel.
        state: By kernel, `growth`: how much more than expected the norm has grown, lately; `lag`:
            the norm over its estimate, as the last check has shown it; `norm`: the estimate after
            the last step, over the bound.
        rounds: How often it is to be run after each step of the optimizer.
        is_active: Kernels that may be moved.
        is_non_finite: Kernels of which not everything was finite at the last step.
        is_touched: Kernels that the last step has changed.
        grown: By how much norms have grown in the last step, of kernels that are not seen whole.
    """

    def __init__(self, kinds: Sequence[Kind], headroom: float) -> None:
        self._kinds, self._headroom = list(kinds), headroom
        self.groups: list[Group] = [group for kind in kinds for group in kind.groups]
        self.slices = slices(self.groups)
        self._sizes = [sum(group.count for group in kind.groups) for kind in kinds]
        first = self.groups[0].parameters()[0][0]
        like = torch.zeros(sum(self._sizes), dtype=torch.float32, device=first.device)
        like = like.double() if first.dtype == torch.float64 else like
        self.bounds = like + 1
        self.state = {"growth": like + headroom, "lag": like + 1, "norm": like.clone()}
        self.is_active, self.is_non_finite, self.is_touched = like == 0, like > 0, like > 0
        self.grown = like.clone()
        self.rounds = max(kind.rounds for kind in kinds)
        self._most = max(TUNING.most, headroom)
        each = [(kind, own, like.new_ones(own.count)) for kind in kinds for own in kind.groups]
        self._lags = joined([ones * kind.lags for kind, _, ones in each])
        near = joined([ones * kind.near for kind, _, ones in each])
        is_partial = joined([ones * (not group.is_seen_whole) for _, group, ones in each])
        # By whether what is far above is cut: the limit, and how much lower it may be.
        self._limits = [
            (most, (most - 1 + TUNING.unseen) * is_partial) for most in (near, like + TUNING.far)
        ]

    def warm_up(self, rounds: int) -> None:
        """Look for the leading vectors of the weights as they are, and move nothing."""
        for _ in range(rounds):
            self._refresh()
        self.state["norm"].copy_(joined([kind.norms() for kind in self._kinds]))

    def run(self, *, far: bool = False, may_read: bool = False) -> list[Tensor]:
        """One step: the parameters as they are to be, in the order of `parameters()`.

        Args:
            far: Cut even what is far above its bound, which takes more than one step.
            may_read: Whether a host may ask if all is finite, since nothing waits for it: then
                weights need not be made so, which takes a tenth of the time for wide layers.
        """
        share = self._refresh(may_read)
        state, is_non_finite = self.state, self.is_non_finite
        target = (1 - state["growth"].clamp(self._headroom, self._most)) / state["lag"]
        top = joined([kind.norms() for kind in self._kinds]).clamp_min(TINY)
        grown = top / state["norm"].clamp_min(SMALL) - 1
        most = (self._limit(grown, far) / top).clamp(max=1.0)
        each = zip(self._kinds, self._split(target), self._split(most), strict=True)
        found = [kind.find(*own) for kind, *own in each]
        scale, is_above = joined([f.scale for f in found]), joined([f.is_above for f in found])
        is_above = is_above | (scale < share)
        touched = torch.logical_and(is_above & self.is_active, ~is_non_finite, out=self.is_touched)
        grown = torch.mul(grown, self._lags, out=self.grown)
        grown = torch.maximum(TUNING.calm * state["growth"], grown)
        torch.where(is_non_finite, state["growth"], grown, out=state["growth"])
        norm = torch.where(self.is_active, torch.minimum(top * scale, target), top)
        torch.where(is_non_finite, state["norm"], norm, out=state["norm"])
        scale = (scale / share).masked_fill(~touched, 1)
        factor = self.bounds * touched
        parts = zip(self._kinds, found, self._split(scale), self._split(factor), strict=True)
        return [
            new
            for kind, own, part, times in parts
            for new in kind.moved(part, own.cuts * broadcast(times, own.cuts))
        ]

    def part(self, own: slice, kinds: Sequence[Kind]) -> Stage:
        """A stage of some of the kernels, of these kinds, which remembers the same of them."""
        part = Stage(kinds, self._headroom)
        part.state = {key: tensor[own] for key, tensor in self.state.items()}
        for name in ("bounds", "is_active", "is_non_finite", "is_touched", "grown"):
            setattr(part, name, getattr(self, name)[own])
        return part

    def _refresh(self, may_read: bool = False) -> Tensor:
        """Refresh all vectors; the weights in units of their bounds over what was taken of them."""
        peak = largest(kernel for group in self.groups for kernel in group.read())
        is_non_finite = torch.logical_not(peak < math.inf, out=self.is_non_finite)
        share = (peak / (TAMED * self.bounds)).clamp_min(1.0).masked_fill(is_non_finite, 1)
        unit = torch.reciprocal(share * self.bounds).masked_fill(is_non_finite, 0)
        is_finite = may_read and not is_non_finite.any()
        for group, own in zip(self.groups, self.slices, strict=True):
            group.normalize(unit[own], self.bounds[own], is_finite)
        for kind in self._kinds:
            kind.refresh()
        return share

    def _limit(self, grown: Tensor, far: bool) -> Tensor:
        """Times the bound, what is scaled down before it is cut.

        Of weights that have been replaced, one refresh does not show all. Of norms that grow by up
        to an eighth in a step it shows all but a few percent, of those that grow by a third it does
        not.
        """
        replaced = torch.maximum(grown, 5 * grown - 0.5).clamp(0.0, 1.0)
        most, unseen = self._limits[far]
        return torch.addcmul(most, unseen, replaced, value=-1)

    def _split(self, tensor: Tensor) -> Sequence[Tensor]:
        return torch.split(tensor, self._sizes)

    def norms(self) -> Tensor:
        """The norm of each kernel as it is now, for the host; nothing is remembered of it."""
        kept = [self.state, *(group.state for group in self.groups)]
        states = [tensor for state in kept for tensor in state.values()]
        before = [tensor.clone() for tensor in states]
        for _ in range(REFRESHES):
            share = self._refresh()
        norms = joined([kind.measured() for kind in self._kinds]) * share * self.bounds
        for tensor, value in zip(states, before, strict=True):
            tensor.copy_(value)
        return norms

    def parameters(self) -> list[list[Tensor]]:
        """What `run` gives new values for, by group and parameter, of each layer."""
        return [tensors for group in self.groups for tensors in group.parameters()]
