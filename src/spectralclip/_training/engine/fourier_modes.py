"""Convolutions with zero or circular padding, held within their bounds through Fourier modes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from spectralclip._training.engine.constrained_layer import ConstrainedLayer
from spectralclip._training.engine.cut_step import (
    Cuts,
    DenseCuts,
    FactorCuts,
    MomentumProjection,
    project_,
    project_momentum_,
)
from spectralclip._training.engine.mode_tracker import Array, Frequencies, Modes, ModeTracker, Taps
from spectralclip._training.engine.norm_check import GrowthMonitor, Target
from spectralclip._training.engine.tuning import COSTLY, FREQUENCIES, MODES, REST

# Of a layer without a bound.
FREE = Target(math.inf, math.inf, 0.0)


@final
class ModeGroup:
    """Convolutions of one shape, followed together.

    Attributes:
        layers: The layers.
        monitors: How fast each of them has been growing.
        norms: The largest singular value over all frequencies, by layer.
        work: Multiply-adds done so far.
        refreshes: Steps at which modes were refreshed.
        previous: The weights as they were left then.
        stride: How far they had moved in a step before that; zero if it is not known.
    """

    def __init__(
        self,
        layers: Sequence[ConstrainedLayer],
        taps: Taps,
        frequencies: Frequencies,
        project_momentum: MomentumProjection,
        generators: Sequence[torch.Generator],
        width: int = MODES.width,
    ) -> None:
        self.layers, self._project_momentum = tuple(layers), project_momentum
        self._groups, self._taps = layers[0].groups, taps
        like = self._gathered()
        batch, rows, columns, _ = like.shape
        draws = [generator for generator in generators for _ in range(self._groups)]
        self.tracker = ModeTracker((batch, rows, columns), taps, frequencies, width, like, draws)
        self.norms: dict[str, float] = {}
        self.monitors = [GrowthMonitor() for _ in layers]
        self._targets = [FREE for _ in layers]
        self.is_warm, self.work, self.refreshes = False, 0.0, 0
        self.previous: Tensor | None = None
        self.stride = 0.0
        self._refresh_work = 2.0 * self.tracker.columns * like.numel() / batch
        share = max(COSTLY.ample / self._refresh_work, COSTLY.least_share)
        self._count = max(COSTLY.least, math.ceil(share * self.tracker.vectors.shape[1]))
        self.is_costly, self.rested = self._refresh_work > COSTLY.ample, 0

    @torch.no_grad()
    def begin(self, bounds: Mapping[str, float]) -> dict[str, float]:
        """Warm up without clipping anything; the largest values, or none if one is not finite."""
        for layer in self.layers:
            if layer.name in bounds:
                layer.tame_(bounds[layer.name])
        weight, rows = self._gathered().flatten(2), self._rows()
        if not np.isfinite(self._largest(weight, rows)).all() or not self._warm_up(weight, rows):
            return {}
        tops = self.tracker.values.max(1).reshape(len(self.layers), -1).max(1)
        return {layer.name: float(top) for layer, top in zip(self.layers, tops, strict=True)}

    @torch.no_grad()
    def step(self, targets: Mapping[str, Target]) -> list[str]:
        """Refresh, and clip what is above its bound.

        Returns:
            The names of layers whose weights are not finite; they are as they were.
        """
        for layer in self.layers:
            if layer.name in targets:
                layer.tame_(targets[layer.name].bound)
        weight, rows = self._gathered().flatten(2), self._rows()
        non_finite = self._attempt(targets, weight, rows)
        others = {name: target for name, target in targets.items() if name not in non_finite}
        if not non_finite or not others:
            return non_finite
        # The others are not to suffer: what is not finite counts as zero for this step.
        known = [layer.name not in non_finite for layer in self.layers]
        fine = torch.tensor(known, device=weight.device).repeat_interleave(self._groups)
        weight = torch.where(fine[:, None, None], weight, 0.0)
        rows = None if rows is None else torch.where(fine[:, None], rows, 0.0)
        return non_finite + self._attempt(others, weight, rows)

    def _attempt(
        self, targets: Mapping[str, Target], weight: Tensor, rows: Tensor | None
    ) -> list[str]:
        try:
            return self._step(targets, weight, rows)
        except (RuntimeError, np.linalg.LinAlgError):  # as eigenvalues of what is not finite raise
            if np.isfinite(self._largest(weight, rows)).all():
                raise
            return self._non_finite(weight, rows)

    def _non_finite(self, weight: Tensor, rows: Tensor | None) -> list[str]:
        """The layers that are not finite, and what their last weights were is forgotten."""
        self.previous = None
        # Squares of squares are formed on the way.
        non_finite = ~(self._largest(weight, rows) < torch.finfo(weight.dtype).max ** 0.25)
        by_layer = non_finite.reshape(len(self.layers), -1).any(1)
        names = [
            layer.name for layer, is_broken in zip(self.layers, by_layer, strict=True) if is_broken
        ]
        return names or [layer.name for layer in self.layers]

    def _largest(self, weight: Tensor, rows: Tensor | None) -> Array:
        """The largest entry of each kernel, NaN if there is one."""
        scaled = weight if rows is None else weight * rows[:, :, None]
        largest: Array = scaled.abs().amax((1, 2)).cpu().double().numpy()
        return largest

    def _step(
        self, targets: Mapping[str, Target], weight: Tensor, rows: Tensor | None
    ) -> list[str]:
        moved = self._moved(weight)
        # What has been replaced, as by a checkpoint, begins anew.
        is_new = not self.is_warm or REST.strange * self.stride < moved < math.inf
        if is_new and not self._warm_up(weight, rows):
            return self._non_finite(weight, rows)
        self.tracker.ages += 1
        self._targets = [targets.get(layer.name, FREE) for layer in self.layers]
        goals = [
            monitor.lowered(target)
            for target, monitor in zip(self._targets, self.monitors, strict=True)
        ]
        # Weights that have leaped, or are not finite, are not left alone.
        if moved <= REST.leap * self.stride and self._may_rest(goals):
            return []
        self.stride = moved if self.refreshes > 1 and math.isfinite(moved) else 0.0
        chosen = self._promising(goals)
        wild = not self.is_costly and any(monitor.growth > REST.wild for monitor in self.monitors)
        restless = not self.is_costly and any(
            monitor.growth > REST.calm for monitor in self.monitors
        )
        heading = self.previous is not None and (
            restless or self.refreshes % FREQUENCIES.heading == 1
        )
        if heading and self.previous is not None:
            # In place: fresh memory for large weights takes longer than the subtraction.
            change = torch.sub(weight, self.previous, out=self.previous)
            self.tracker.follow_drift(change, rows, chosen)
        rounds = (COSTLY.rounds if self.is_costly else MODES.rounds) * (2 if is_new else 1)
        almost = COSTLY.almost if self.is_costly else MODES.almost
        for left in reversed(range(rounds)):
            first = left == rounds - 1
            climbing = first and self.refreshes % FREQUENCIES.climbing == 0
            modes = self.tracker.refresh(
                weight, rows, chosen, move=climbing, drift=first and heading
            )
            self.refreshes += first
            self._count_work(chosen)
            tops = modes.S[:, :, 0].max(1).reshape(len(self.layers), -1)
            seen = tops.max(1).tolist()
            if not all(map(math.isfinite, seen)):
                return self._non_finite(weight, rows)
            self.tracker.keep(modes)
            # What grows fast has grown further than one refresh shows.
            again = first and wild
            if first:
                self._note(seen, goals)
            for index, (layer, bound) in enumerate(zip(self.layers, goals, strict=True)):
                self.norms[layer.name] = min(seen[index], bound)
                # In wide layers with random weights, values crowd below the largest: there a small
                # scale of everything costs least.
                above = int((modes.S[self._own(index)] > bound).sum())
                crowded = self.is_costly and above > COSTLY.cuts
                if seen[index] > bound and left and not crowded:
                    self._clip(index, modes, bound, weight, rows, first=first)
                elif seen[index] > bound:
                    margin = self._margin(index) if self.is_costly else 1.0
                    self._scale(index, tops[index], margin * bound, weight)
                again |= seen[index] > almost * bound
            if not again:
                break
            rows = self._rows()
        self.previous = torch.empty_like(weight) if self.previous is None else self.previous
        self.previous.copy_(weight)
        return []

    def _promising(self, goals: Sequence[float]) -> Array | None:
        """The frequencies to refresh, as `ModeTracker.promising` gives them."""
        if not self.is_costly:
            return None
        growth = np.repeat([monitor.growth for monitor in self.monitors], self._groups)
        limits = np.repeat(np.asarray(goals), self._groups)
        grown = 1 + growth[:, None] * self.tracker.ages
        potential = grown * self.tracker.values / (COSTLY.overlooked * limits[:, None])
        return self.tracker.promising(potential, self._count)

    def _moved(self, weight: Tensor) -> float:
        """How far a kernel has moved in a step since the last refresh, at most.

        Seen in some of the rows, since large weights take long to read.
        """
        if self.previous is None:
            return math.inf
        every = max(1, math.isqrt(weight.numel() // FREQUENCIES.sampled))
        change = weight[:, ::every] - self.previous[:, ::every]
        return float(torch.linalg.vector_norm(change, dim=(1, 2)).amax()) / (1 + self.rested)

    @torch.no_grad()
    def shrink(self, index: int, factor: float) -> None:
        """Scale one of the layers."""
        name = self.layers[index].name
        self.layers[index].moving.mul_(factor)
        self.norms[name] *= factor
        self.monitors[index].norm *= factor

    def state(self, index: int) -> dict[str, Any]:
        """What is remembered of one of the layers."""
        own = self._own(index)
        tracker, name = self.tracker, self.layers[index].name
        return {
            "vectors": tracker.vectors[own].clone(),
            **{
                key: torch.from_numpy(getattr(tracker, key)[own].copy())
                for key in ("frequencies", "values", "ages")
            },
            "is_warm": self.is_warm,
            "norm": self.norms.get(name),
            "growth": self.monitors[index].state(),
            "rested": self.rested,
            "refreshes": self.refreshes,
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
        self.norms.pop(self.layers[index].name, None)
        if state["previous"] is None:
            self.previous = None
        else:
            if self.previous is None:
                self.previous = self._gathered().flatten(2).clone()
            self.previous[own] = state["previous"].to(self.previous)
        self.is_warm = bool(state["is_warm"])
        self.monitors[index].load_state(state["growth"])
        self.rested, self.refreshes = int(state["rested"]), int(state["refreshes"])
        if state["norm"] is not None:
            self.norms[self.layers[index].name] = float(state["norm"])

    def _may_rest(self, bounds: Sequence[float]) -> bool:
        """Whether no layer should be far above its bound after another step."""
        steps = self.rested + 1
        if steps >= REST.longest or any(math.isnan(monitor.norm) for monitor in self.monitors):
            return False
        resting = REST.expected_costly if self.is_costly else REST.expected
        for monitor, bound in zip(self.monitors, bounds, strict=True):
            if monitor.norm * (1 + monitor.growth * steps) > resting * bound:
                return False
            if not self.is_costly and monitor.leap > REST.calm:
                return False
        # Far below, the norm is to be known at each step; near the bound it is known anyway.
        near = any(u.norm > REST.close * b for u, b in zip(self.monitors, bounds, strict=True))
        if not (self.is_costly or near):
            return False
        self.rested += 1
        return True

    def _note(self, seen: Sequence[float], bounds: Sequence[float]) -> None:
        """Remember how fast the layers grow, and where they will be."""
        for index, (monitor, top) in enumerate(zip(self.monitors, seen, strict=True)):
            monitor.note(top, top, 1 + self.rested)
            monitor.norm = min(top, self._margin(index) * bounds[index])
        self.rested = 0

    def _margin(self, index: int) -> float:
        """The share of its bound to which a layer is brought that is above it.

        To refresh a costly layer at each step is what costs; so it is given room for a few.
        """
        room = 1 - MODES.margin
        if self.is_costly:
            least, most = COSTLY.margins
            room = min(max(REST.longest * self.monitors[index].growth, least), most)
        return self._targets[index].margin(room)

    def _own(self, index: int) -> slice:
        return slice(index * self._groups, (index + 1) * self._groups)

    def _gathered(self) -> Tensor:
        """All kernels as `(layers * groups, rows, columns, taps)`; of one layer, a view."""
        kernels = [layer.kernels() for layer in self.layers]
        return kernels[0] if len(kernels) == 1 else torch.cat(kernels)

    def _rows(self) -> Tensor | None:
        """What batch norms multiply the outputs with: `(layers * groups, rows)`."""
        parts = [rows for layer in self.layers if (rows := layer.rows()) is not None]
        if not parts:
            return None
        return torch.stack(parts).reshape(len(self.layers) * self._groups, -1)

    def _warm_up(self, weight: Tensor, rows: Tensor | None) -> bool:
        for refresh in range(MODES.warm_up):
            modes = self.tracker.refresh(weight, rows, move=True)
            self._count_work(None)
            if not np.isfinite(modes.S).all():
                return False
            self.tracker.keep(modes)
            # The first refresh begins from random vectors: what it gains says nothing.
            if refresh and modes.gain.max() <= MODES.warm * modes.S.max():
                break
        self.is_warm = True
        return True

    def _count_work(self, chosen: Array | None) -> None:
        share = 1.0 if chosen is None else chosen.shape[1] / self.tracker.vectors.shape[1]
        self.work += share * self._refresh_work * len(self.tracker.vectors)

    def _clip(
        self,
        index: int,
        modes: Modes,
        bound: float,
        weight: Tensor,
        rows: Tensor | None,
        *,
        first: bool,
    ) -> None:
        """Project one layer onto the cuts of its largest values."""
        layer, own = self.layers[index], self._own(index)
        found = modes.S[own].ravel()
        each = found.size // self._groups
        most = COSTLY.cuts if self.is_costly else MODES.cuts
        where = np.argsort(-found, kind="stable")[:most]
        target = bound * self._margin(index)
        where = where[found[where] > MODES.near * target]
        left, right = modes.cuts(where // each + own.start, where % each)
        kernel = torch.from_numpy(where // each).to(left.device)
        values = torch.from_numpy(found[where]).to(left)
        cuts: Cuts
        if layer.gamma is not None:
            cuts, moving = self._gamma_cuts(layer.gamma, kernel, left, values), layer.gamma.detach()
        else:
            if rows is not None:
                left = left * rows[own][kernel][:, None]
            cuts, moving = FactorCuts(kernel, self._groups, left, right), weight[own]
        active = project_(moving, cuts, found[where] - target, (bound - target) / 2)
        self._store(index, weight)
        if active is not None and first:
            self._project_momentum(
                layer.moving, lambda momentum: project_momentum_(momentum, active)
            )

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
        gamma = self.layers[index].gamma
        if gamma is None:
            weight[self._own(index)] *= factors[:, None, None]
        else:
            gamma.mul_(factors.repeat_interleave(gamma.numel() // self._groups).to(gamma.dtype))
        self._store(index, weight)

    def _store(self, index: int, weight: Tensor) -> None:
        """Write back what has been changed in place."""
        layer = self.layers[index]
        if layer.gamma is not None:
            torch.autograd.graph.increment_version(layer.gamma)
        else:
            layer.write(weight[self._own(index)])
