"""Keeping convolutions with zero or circular padding within their bounds, through plane waves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from spectralclip._training.engine.constrained_layer import Slot
from spectralclip._training.engine.cut_step import (
    Cuts,
    DenseCuts,
    FactorCuts,
    Stripping,
    project_,
    strip_,
)
from spectralclip._training.engine.mode_tracker import Array, Frequencies, Taps, Waves, WaveTracker
from spectralclip._training.engine.norm_check import Aim, Unrest

# Vectors at each frequency; cuts at once; which values make cuts; looks after one step.
WIDTH, MOST_CUTS, NEAR, ROUNDS = 2, 24, 0.997, 5
# Frequencies climb after so many steps.
CLIMBING = 2
# So often the direction of the weights' changes is looked for, if they are calm or costly.
HEADING = 2
# What is above its bound is brought a little below it, so that it is not above at each step.
SLACK = 0.996
# Looks at the beginning, at most, and how little the largest value grows when they are enough.
WARM_UP, WARM = 30, 1e-3
# A value is looked at again while it, or where it is heading, is above this share of the bound.
RISE, ALMOST = 1.0, 1.008
# Multiplications above which a look takes some of the frequencies only, and how many at least.
AMPLE, LEAST, LEAST_SHARE = 6e6, 14, 1 / 3
# Then there are fewer rounds and cuts too, and a layer that should not be above its bound by more
# than the headroom is left for some steps.
COSTLY_ROUNDS, COSTLY_CUTS, COSTLY_ALMOST, COSTLY_SLACK = 2, 8, 1.015, (0.02, 0.06)
# Values that may have come up to this share of the bound are not left out of a look.
OVERLOOKED = 0.96
# Numbers of a kernel that are read to see how far it has moved, at least.
SAMPLED = 2**15
# Times the last stride: so far the weights may move in a step at rest, and before they are others.
LEAP, STRANGE = 1.5, 30
RESTING, COSTLY_RESTING, LONGEST_REST, CLOSE = 1.01, 1.02, 2, 0.97
# The growth in a step up to which weights are calm, and above which one look is not enough.
CALM, WILD = 0.015, 0.03

# Of a layer without a bound.
FREE = Aim(math.inf, math.inf, 0.0)


@final
class WaveGroup:
    """Convolutions of one shape, followed together.

    Attributes:
        slots: The layers.
        unrest: How fast each of them has been growing.
        norms: The largest singular value over all frequencies, by layer.
        work: Multiplications done so far.
        looks: Steps at which it has looked.
        previous: The weights as they were left then.
        stride: How far they had moved in a step before that; zero if it is not known.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        taps: Taps,
        frequencies: Frequencies,
        strip: Stripping,
        generators: Sequence[torch.Generator],
        width: int = WIDTH,
    ) -> None:
        self.slots, self._stripping = tuple(slots), strip
        self._groups, self._taps = slots[0].groups, taps
        like = self._gathered()
        batch, rows, columns, _ = like.shape
        draws = [generator for generator in generators for _ in range(self._groups)]
        self.tracker = WaveTracker((batch, rows, columns), taps, frequencies, width, like, draws)
        self.norms: dict[str, float] = {}
        self.unrest = [Unrest() for _ in slots]
        self._aims = [FREE for _ in slots]
        self.is_warm, self.work, self.looks = False, 0.0, 0
        self.previous: Tensor | None = None
        self.stride = 0.0
        self._look_work = 2.0 * self.tracker.columns * like.numel() / batch
        share = max(AMPLE / self._look_work, LEAST_SHARE)
        self._count = max(LEAST, math.ceil(share * self.tracker.vectors.shape[1]))
        self.is_costly, self.rested = self._look_work > AMPLE, 0

    @torch.no_grad()
    def begin(self, bounds: Mapping[str, float]) -> dict[str, float]:
        """Warm up without clipping anything; the largest values, or none if one is not finite."""
        for slot in self.slots:
            if slot.name in bounds:
                slot.tame_(bounds[slot.name])
        weight, rows = self._gathered().flatten(2), self._rows()
        if not np.isfinite(self._largest(weight, rows)).all() or not self._warm_up(weight, rows):
            return {}
        tops = self.tracker.values.max(1).reshape(len(self.slots), -1).max(1)
        return {slot.name: float(top) for slot, top in zip(self.slots, tops, strict=True)}

    @torch.no_grad()
    def step(self, aims: Mapping[str, Aim]) -> list[str]:
        """Look, and clip what is above its bound.

        Returns:
            The names of layers whose weights are not finite; they are as they were.
        """
        for slot in self.slots:
            if slot.name in aims:
                slot.tame_(aims[slot.name].bound)
        weight, rows = self._gathered().flatten(2), self._rows()
        lost = self._attempt(aims, weight, rows)
        others = {name: aim for name, aim in aims.items() if name not in lost}
        if not lost or not others:
            return lost
        # The others are not to suffer for it: what is lost counts as zero for this step.
        fine = torch.tensor([slot.name not in lost for slot in self.slots], device=weight.device)
        fine = fine.repeat_interleave(self._groups)
        weight = torch.where(fine[:, None, None], weight, 0.0)
        rows = None if rows is None else torch.where(fine[:, None], rows, 0.0)
        return lost + self._attempt(others, weight, rows)

    def _attempt(self, aims: Mapping[str, Aim], weight: Tensor, rows: Tensor | None) -> list[str]:
        try:
            return self._step(aims, weight, rows)
        except (RuntimeError, np.linalg.LinAlgError):  # as eigenvalues of what is not finite raise
            if np.isfinite(self._largest(weight, rows)).all():
                raise
            return self._lost(weight, rows)

    def _lost(self, weight: Tensor, rows: Tensor | None) -> list[str]:
        """The layers that are not finite, and what their last weights were is forgotten."""
        self.previous = None
        # Squares of squares are formed on the way.
        lost = ~(self._largest(weight, rows) < torch.finfo(weight.dtype).max ** 0.25)
        by_layer = lost.reshape(len(self.slots), -1).any(1)
        names = [slot.name for slot, is_lost in zip(self.slots, by_layer, strict=True) if is_lost]
        return names or [slot.name for slot in self.slots]

    def _largest(self, weight: Tensor, rows: Tensor | None) -> Array:
        """The largest entry of each kernel, NaN if there is one."""
        scaled = weight if rows is None else weight * rows[:, :, None]
        largest: Array = scaled.abs().amax((1, 2)).cpu().double().numpy()
        return largest

    def _step(self, aims: Mapping[str, Aim], weight: Tensor, rows: Tensor | None) -> list[str]:
        moved = self._moved(weight)
        # What has been replaced, as by a checkpoint, begins anew.
        is_new = not self.is_warm or STRANGE * self.stride < moved < math.inf
        if is_new and not self._warm_up(weight, rows):
            return self._lost(weight, rows)
        self.tracker.ages += 1
        self._aims = [aims.get(slot.name, FREE) for slot in self.slots]
        wished = [unrest.lowered(aim) for aim, unrest in zip(self._aims, self.unrest, strict=True)]
        # Weights that have leaped, or are lost, are not left alone.
        if moved <= LEAP * self.stride and self._may_rest(wished):
            return []
        self.stride = moved if self.looks > 1 and math.isfinite(moved) else 0.0
        chosen = self._promising(wished)
        wild = not self.is_costly and any(unrest.growth > WILD for unrest in self.unrest)
        restless = not self.is_costly and any(unrest.growth > CALM for unrest in self.unrest)
        heading = self.previous is not None and (restless or self.looks % HEADING == 1)
        if heading and self.previous is not None:
            # In place: fresh memory for large weights takes longer than the subtraction.
            change = torch.sub(weight, self.previous, out=self.previous)
            self.tracker.follow_drift(change, rows, chosen)
        rounds = (COSTLY_ROUNDS if self.is_costly else ROUNDS) * (2 if is_new else 1)
        almost = COSTLY_ALMOST if self.is_costly else ALMOST
        for left in reversed(range(rounds)):
            first = left == rounds - 1
            climbing = first and self.looks % CLIMBING == 0
            waves = self.tracker.look(weight, rows, chosen, move=climbing, drift=first and heading)
            self.looks += first
            self._count_work(chosen)
            tops = waves.S[:, :, 0].max(1).reshape(len(self.slots), -1)
            limits = (waves.S[:, :, 0] + RISE * waves.rise).max(1).reshape(tops.shape)
            seen, possible = tops.max(1).tolist(), limits.max(1).tolist()
            if not all(map(math.isfinite, seen)):
                return self._lost(weight, rows)
            self.tracker.keep(waves)
            # What grows fast has grown further than one look shows.
            again = first and wild
            if first:
                self._note(seen, wished)
            for index, (slot, bound) in enumerate(zip(self.slots, wished, strict=True)):
                self.norms[slot.name] = min(seen[index], bound)
                crowded = self.is_costly and self._is_crowded(index, waves, bound)
                if seen[index] > bound and left and not crowded:
                    self._clip(index, waves, bound, weight, rows, first=first)
                elif seen[index] > bound:
                    slack = self._slack(index) if self.is_costly else 1.0
                    self._scale(index, tops[index], slack * bound, weight)
                again |= max(seen[index], possible[index]) > almost * bound
            if not again:
                break
            rows = self._rows()
        self.previous = torch.empty_like(weight) if self.previous is None else self.previous
        self.previous.copy_(weight)
        return []

    def _promising(self, wished: Sequence[float]) -> Array | None:
        """The frequencies to look at, as `WaveTracker.promising` gives them."""
        if not self.is_costly:
            return None
        growth = np.repeat([unrest.growth for unrest in self.unrest], self._groups)
        limits = np.repeat(np.asarray(wished), self._groups)
        grown = 1 + growth[:, None] * self.tracker.ages
        potential = grown * self.tracker.values / (OVERLOOKED * limits[:, None])
        return self.tracker.promising(potential, self._count)

    def _moved(self, weight: Tensor) -> float:
        """How far a kernel has moved in a step since the last look, at most.

        Seen in some of the rows: it is to show leaps, and large weights take long to read.
        """
        if self.previous is None:
            return math.inf
        every = max(1, math.isqrt(weight.numel() // SAMPLED))
        change = weight[:, ::every] - self.previous[:, ::every]
        return float(torch.linalg.vector_norm(change, dim=(1, 2)).amax()) / (1 + self.rested)

    @torch.no_grad()
    def shrink(self, index: int, factor: float) -> None:
        """Scale one of the layers."""
        name = self.slots[index].name
        self.slots[index].moving.mul_(factor)
        self.norms[name] *= factor
        self.unrest[index].norm *= factor

    def state(self, index: int) -> dict[str, Any]:
        """What is remembered of one of the layers."""
        own = self._own(index)
        tracker, name = self.tracker, self.slots[index].name
        return {
            "vectors": tracker.vectors[own].clone(),
            "frequencies": torch.from_numpy(tracker.frequencies[own].copy()),
            "values": torch.from_numpy(tracker.values[own].copy()),
            "ages": torch.from_numpy(tracker.ages[own].copy()),
            "is_warm": self.is_warm,
            "norm": self.norms.get(name),
            "unrest": self.unrest[index].state(),
            "rested": self.rested,
            "looks": self.looks,
            "stride": self.stride,
            "drift": tracker.drift[own].clone(),
            "previous": None if self.previous is None else self.previous[own].clone(),
        }

    def load_state(self, index: int, state: Mapping[str, Any]) -> None:
        """Go on from there with one of the layers."""
        own, tracker = self._own(index), self.tracker
        tracker.vectors = tracker.vectors.clone()
        tracker.vectors[own] = state["vectors"].to(tracker.vectors)
        tracker.values[own] = state["values"].cpu().numpy()
        tracker.ages[own] = state["ages"].cpu().numpy()
        tracker.move_to(own, state["frequencies"].cpu().numpy())
        tracker.drift = tracker.drift.clone()
        tracker.drift[own] = state["drift"].to(tracker.drift)
        self.stride = float(state["stride"])
        self.norms.pop(self.slots[index].name, None)
        if state["previous"] is None:
            self.previous = None
        else:
            whole = self._gathered().flatten(2).clone() if self.previous is None else self.previous
            whole[own] = state["previous"].to(whole)
            self.previous = whole
        self.is_warm = bool(state["is_warm"])
        self.unrest[index].load_state(state["unrest"])
        self.rested, self.looks = int(state["rested"]), int(state["looks"])
        if state["norm"] is not None:
            self.norms[self.slots[index].name] = float(state["norm"])

    def _may_rest(self, bounds: Sequence[float]) -> bool:
        """Whether no layer should be far above its bound after another step."""
        steps = self.rested + 1
        if steps >= LONGEST_REST or any(math.isnan(unrest.norm) for unrest in self.unrest):
            return False
        resting = COSTLY_RESTING if self.is_costly else RESTING
        for unrest, bound in zip(self.unrest, bounds, strict=True):
            if unrest.norm * (1 + unrest.growth * steps) > resting * bound:
                return False
            if not self.is_costly and unrest.leap > CALM:
                return False
        # Far below, the norm is to be known at each step; near the bound it is known anyway.
        near = any(u.norm > CLOSE * b for u, b in zip(self.unrest, bounds, strict=True))
        if not (self.is_costly or near):
            return False
        self.rested += 1
        return True

    def _note(self, seen: Sequence[float], bounds: Sequence[float]) -> None:
        """Remember how fast the layers grow, and where they will be."""
        for index, (unrest, top) in enumerate(zip(self.unrest, seen, strict=True)):
            unrest.note(top, top, 1 + self.rested)
            unrest.norm = min(top, self._slack(index) * bounds[index])
        self.rested = 0

    def _slack(self, index: int) -> float:
        """The share of its bound to which a layer is brought that is above it.

        Looking at a costly layer at each step is what costs; so it is given room for a few.
        """
        room = 1 - SLACK
        if self.is_costly:
            least, most = COSTLY_SLACK
            room = min(max(LONGEST_REST * self.unrest[index].growth, least), most)
        return self._aims[index].slack(room)

    def _own(self, index: int) -> slice:
        return slice(index * self._groups, (index + 1) * self._groups)

    def _gathered(self) -> Tensor:
        """All kernels as `(layers * groups, rows, columns, taps)`; of one layer, a view."""
        kernels = [slot.kernels() for slot in self.slots]
        return kernels[0] if len(kernels) == 1 else torch.cat(kernels)

    def _rows(self) -> Tensor | None:
        """What batch norms multiply the outputs with: `(layers * groups, rows)`."""
        parts = [rows for slot in self.slots if (rows := slot.rows()) is not None]
        if not parts:
            return None
        return torch.stack(parts).reshape(len(self.slots) * self._groups, -1)

    def _warm_up(self, weight: Tensor, rows: Tensor | None) -> bool:
        for look in range(WARM_UP):
            waves = self.tracker.look(weight, rows, move=True)
            self._count_work(None)
            if not np.isfinite(waves.S).all():
                return False
            self.tracker.keep(waves)
            # The first look begins from random vectors: what it rises by says nothing.
            if look and waves.rise.max() <= WARM * waves.S.max():
                break
        self.is_warm = True
        return True

    def _count_work(self, chosen: Array | None) -> None:
        share = 1.0 if chosen is None else chosen.shape[1] / self.tracker.vectors.shape[1]
        self.work += share * self._look_work * len(self.tracker.vectors)

    def _clip(
        self,
        index: int,
        waves: Waves,
        bound: float,
        weight: Tensor,
        rows: Tensor | None,
        *,
        first: bool,
    ) -> None:
        """Project one layer onto the cuts of its largest values."""
        slot, own = self.slots[index], self._own(index)
        found = waves.S[own].ravel()
        each = found.size // self._groups
        most = COSTLY_CUTS if self.is_costly else MOST_CUTS
        where = np.argsort(-found, kind="stable")[:most]
        aim = bound * self._slack(index)
        where = where[found[where] > NEAR * aim]
        left, right = waves.cuts(where // each + own.start, where % each)
        kernel = torch.from_numpy(where // each).to(left.device)
        values = torch.from_numpy(found[where]).to(left)
        cuts: Cuts
        if slot.gamma is not None:
            cuts, target = self._gamma_cuts(slot.gamma, kernel, left, values), slot.gamma.detach()
        else:
            if rows is not None:
                left = left * rows[own][kernel][:, None]
            cuts, target = FactorCuts(kernel, self._groups, left, right), weight[own]
        active = project_(target, cuts, found[where] - aim, (bound - aim) / 2)
        self._store(index, weight)
        if active is not None and first:
            self._stripping(slot.moving, lambda momentum: strip_(momentum, active))

    def _is_crowded(self, index: int, waves: Waves, bound: float) -> bool:
        """Whether too many values are above for cuts to be worth while.

        As in wide layers with random weights, whose values crowd below the largest: there a small
        scale of everything costs least.
        """
        return int((waves.S[self._own(index)] > bound).sum()) > COSTLY_CUTS

    def _gamma_cuts(self, gamma: Tensor, kernel: Tensor, left: Tensor, values: Tensor) -> Cuts:
        """Gradients in a batch norm's factor: that of a value s is `s |u_o|^2 / gamma_o`."""
        shares = left.square().sum(1) * values[:, None]
        whole = shares.new_zeros(len(shares), self._groups, shares.shape[1])
        whole[torch.arange(len(shares), device=shares.device), kernel] = shares
        factor = gamma.detach().to(shares.dtype)
        return DenseCuts(torch.where(factor == 0, 0, whole.flatten(1) / factor))

    def _scale(self, index: int, tops: Array, bound: float, weight: Tensor) -> None:
        """What always helps, where cuts have not been enough: shrink the kernels above."""
        factors = torch.from_numpy(np.minimum(bound / tops, 1.0)).to(weight)
        gamma = self.slots[index].gamma
        if gamma is None:
            weight[self._own(index)] *= factors[:, None, None]
        else:
            gamma.mul_(factors.repeat_interleave(gamma.numel() // self._groups).to(gamma.dtype))
        self._store(index, weight)

    def _store(self, index: int, weight: Tensor) -> None:
        """Write back what has been changed in place."""
        slot = self.slots[index]
        if slot.gamma is not None:
            torch.autograd.graph.increment_version(slot.gamma)
        else:
            slot.write(weight[self._own(index)])
