"""A layer's norm itself, looked at now and then, to see how good its estimates are."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._affine import AffineFunction, Shape
from spectralclip._explicit import explicit_maps, merge
from spectralclip._lanczos_bound import Recurrence, continued
from spectralclip._operator import LinearOperator, as_operator
from spectralclip._starts import random_rows
from spectralclip._track import RitzTracker

# Lanczos steps of a check. From random starts, over eleven layers of all paddings with 12 seeds
# each, the value was too low by at most 5.4 % after 8 steps, 3.9 % after 12, 0.7 % after 16 and
# 0.5 % after 20.
CHECK_STEPS = 16
# An estimate that is off by more is no ground for trust; far below a bound it may be.
SURPRISE, FAR = 0.005, 0.9
# How far weights may move without a check, as a share of their size: so much more after each check
# that found the estimate right, up to so much. Numbers of a tensor that are read to see it.
TRUST, MOST_TRUST, SAMPLED = 0.005, 0.05, 2**12
# A vector is followed until its value rises by no more than this share, in so many rounds at most.
SETTLED, FOLLOWING_ROUNDS = 5e-4, 3
# Estimates that are off by more are not estimates.
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
# The share of a growth that may go unseen, how low a target may become for that, and how much of
# an unrest is left after each step.
UNSEEN, MOST_UNSEEN, CALMING, FORGIVING = 0.9, 0.1, 0.9, 0.98
# What is supposed before anything has been seen.
FIRST_GROWTH = 0.01
# How much of a caution is gone after each look that did not call for it.
FORGETTING = 0.2


@final
class Unrest:
    """How fast a norm has been growing, from which follows how much of it goes unseen.

    Vectors lag behind weights: what grows fast has grown further than they show. Fast growth, as
    in the first steps of Adam, therefore lowers the target for a while.

    Attributes:
        norm: The norm after the last step, NaN if there was none.
        growth: The largest relative growth in a step, lately.
        leap: The same over a longer time: what may come again.
    """

    def __init__(self) -> None:
        self.norm, self.growth, self.leap = math.nan, FIRST_GROWTH, FIRST_GROWTH

    def lowered(self, bound: float) -> float:
        """What to aim at for a bound."""
        return bound * (1 - min(UNSEEN * self.growth, MOST_UNSEEN))

    def note(self, seen: float, kept: float, steps: int = 1) -> None:
        """Take note of what was seen after so many steps, and of what was left of it."""
        grown = 0.0 if math.isnan(self.norm) else max(0.0, seen / max(self.norm, 1e-30) - 1)
        self.growth = max(CALMING**steps * self.growth, grown / steps)
        self.leap = max(FORGIVING**steps * self.leap, grown / steps)
        self.norm = kept

    def state(self) -> dict[str, float]:
        """What is remembered."""
        return {"norm": self.norm, "growth": self.growth, "leap": self.leap}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from there."""
        self.norm, self.growth = float(state["norm"]), float(state["growth"])
        self.leap = float(state["leap"])


@final
class CheckSchedule:
    """When to look at a layer itself: at each step while its estimates cannot be relied on.

    What estimates miss comes from the movement of the weights, so it is that, added up over steps,
    which calls for the next check. How much is let pass grows with each check that finds the
    estimate right, and begins anew with one that does not. Training that moves the weights by a
    tenth at each step, as RMSprop does at its default rate, is thus checked at each step, and so
    is a new checkpoint; training that has calmed down hardly ever.

    Attributes:
        trust: How far the weights may move before the next check, as a share of their size.
        moved: How far they have moved since the last one.
        waited: Steps since then.
        samples: Some numbers of each tensor, as the last step left them.
    """

    def __init__(self) -> None:
        self.trust, self.moved, self.waited = 0.0, 0.0, 0
        self.samples: list[Tensor] = []

    def is_due(self, tensors: Sequence[Tensor], longest: int) -> bool:
        """Whether to check now, after another step; at the latest after `longest` of them."""
        self.waited += 1
        self.moved += self._stride(tensors)
        return self.moved > self.trust or self.waited >= longest

    def note(self, *, surprised: bool) -> None:
        """Take note of a check."""
        self.trust = 0.0 if surprised else min(self.trust + TRUST, MOST_TRUST)
        self.moved, self.waited = 0.0, 0

    def leave(self, tensors: Sequence[Tensor]) -> None:
        """Remember the tensors as they are now."""
        self.samples = [_sample(tensor).clone() for tensor in tensors]

    def _stride(self, tensors: Sequence[Tensor]) -> float:
        """The largest relative change of a tensor in this step."""
        if len(self.samples) != len(tensors):
            return math.inf
        largest = 0.0
        for old, tensor in zip(self.samples, tensors, strict=True):
            new = _sample(tensor)
            change = float(torch.linalg.vector_norm((new - old).float()))
            size = float(torch.linalg.vector_norm(old.float()))
            largest = max(largest, change / max(size, 1e-30))
        return largest

    def state(self) -> dict[str, Any]:
        """What is remembered."""
        samples = [sample.clone() for sample in self.samples]
        return {
            "trust": self.trust,
            "moved": self.moved,
            "waited": self.waited,
            "samples": samples,
        }

    def load_state(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from there."""
        self.trust, self.moved = float(state["trust"]), float(state["moved"])
        self.waited = int(state["waited"])
        self.samples = [sample.to(device, copy=True) for sample in state["samples"]]


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().flatten()
    return flat[:: 1 + flat.numel() // SAMPLED]


@final
class NormCheck:
    """The layer itself, at its true input shapes, looked at now and then.

    Attributes:
        ratio: The norm that was found, over the estimate that was at hand then.
        caution: What a bound is divided by: how far estimates have been too low, at least 1.
        applications: Vectors sent through the layer.
        latest: The step of the last check; 0 if there was none.
    """

    def __init__(
        self, modules: Sequence[nn.Module], in_shapes: Sequence[Shape], origin: str
    ) -> None:
        self._modules = list(modules)
        self._functions = [AffineFunction(self._modules, shape) for shape in in_shapes]
        self._origin, self._draws = origin, 0
        self._trackers = [RitzTracker(1) for _ in in_shapes]
        self._schedule, self.latest = CheckSchedule(), 0
        self.ratio, self.caution, self.applications = 1.0, 1.0, 0

    def is_due(self, longest: int) -> bool:
        """Whether to check the layer after this step; never if `longest` is 0."""
        return self._schedule.is_due(self._tensors(), longest) and longest > 0

    def leave(self) -> None:
        """Remember the weights as a step has left them."""
        self._schedule.leave(self._tensors())

    def follow(self) -> float:
        """The norm by a vector that is known, which may have been overtaken by another."""
        return self._largest(self._follow)

    def compare(self, estimate: float, bound: float, step: int) -> float:
        """Search for the norm, and compare it with an estimate; the norm that was found."""
        is_first = self._draws == 0
        norm = self._largest(self._search)
        self.latest = step
        surprised = norm > FAR * bound and not norm <= (1 + SURPRISE) * estimate
        self._schedule.note(surprised=surprised or not math.isfinite(norm))
        if math.isfinite(norm) and norm > 0 and estimate > 0:
            self.ratio = min(max(norm / estimate, LEAST_RATIO), MOST_RATIO)
            # Quick to become careful, slow to forget.
            # What is still cold at the first look says nothing about later ones.
            called_for = 1.0 if is_first else max(1.0, self.ratio)
            self.caution = max(called_for, self.caution + FORGETTING * (called_for - self.caution))
        return norm

    def _largest(self, norm_at: Callable[[int], float]) -> float:
        """Over the input shapes; NaN for weights that are not finite."""
        try:
            norms = [norm_at(index) for index in range(len(self._functions))]
        except (LostLayer, OverflowError):
            return math.nan
        return math.nan if any(map(math.isnan, norms)) else max(norms)

    def _tensors(self) -> list[Tensor]:
        """All that the norm depends on."""
        return [
            tensor
            for module in self._modules
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
            if tensor.is_floating_point() and not name.endswith(("bias", "running_mean"))
        ]

    def state(self) -> dict[str, Any]:
        """What is remembered."""
        return {
            "schedule": self._schedule.state(),
            "latest": self.latest,
            "vectors": [tracker.vectors for tracker in self._trackers],
            "changes": [tracker.changes for tracker in self._trackers],
            "ratio": self.ratio,
            "caution": self.caution,
            "draws": self._draws,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        function = self._functions[0]
        for index, tracker in enumerate(self._trackers):
            tracker.vectors, tracker.changes = (
                None if rows is None else rows.to(function.device, function.dtype, copy=True)
                for rows in (state["vectors"][index], state["changes"][index])
            )
        self.ratio, self.caution = float(state["ratio"]), float(state["caution"])
        self._draws, self.latest = int(state["draws"]), int(state["latest"])
        self._schedule.load_state(state["schedule"], function.device)

    def _follow(self, index: int) -> float:
        """A round from the last vector, and more where another one has taken over."""
        tracker = self._trackers[index]
        if tracker.vectors is None:
            return self._search(index)
        op = live_operator(self._modules, self._functions[index])
        for _ in range(FOLLOWING_ROUNDS):
            seen = tracker.look(op)
            self.applications += seen.applications
            norm = float(seen.S[0])
            if not math.isfinite(norm):
                return math.nan
            tracker.keep()
            if seen.rise <= SETTLED * norm:
                break
        return norm

    def _search(self, index: int) -> float:
        """Lanczos from the last vector and noise, which finds what has come up since."""
        op, tracker = live_operator(self._modules, self._functions[index]), self._trackers[index]
        generator = seeded(f"{self._origin}, {index}, {self._draws}")
        self._draws += 1
        start = random_rows(op, 1, generator)
        if tracker.vectors is not None:
            start = tracker.vectors + start / start.norm()
        norm, vector, steps = _leading_pair(op, start)
        self.applications += 2 * steps
        if math.isfinite(norm):
            tracker.start(vector)
        return norm


def _leading_pair(op: LinearOperator, start: Tensor) -> tuple[float, Tensor, int]:
    """The largest Ritz value after a fixed number of steps, its vector, and how many there were."""
    recurrence = Recurrence(max(2, op.shape[1]), 1.0, torch.finfo(op.dtype).eps)
    basis = start.new_empty(min(CHECK_STEPS, op.shape[1]), op.shape[1])
    row = start
    for step in range(len(basis)):
        beta = float(row.norm())
        basis[step] = row[0] / beta
        alpha, row = continued(op.gram_rows(basis[step][None]), basis[: step + 1], beta)
        if not math.isfinite(alpha):
            return math.nan, start, step + 1
        if recurrence.add(alpha, float(row.norm())):
            break
    square, coordinates, _ = recurrence.largest()
    vector = coordinates.to(basis)[None] @ basis[: step + 1]
    return math.sqrt(square), vector, step + 1


class LostLayer(ValueError):
    """A layer has weights or statistics of which nothing can be said."""


def live_operator(modules: Sequence[nn.Module], function: AffineFunction) -> LinearOperator:
    """A layer with the weights and statistics that it has now.

    Raises:
        LostLayer: They are not finite, or a variance is not positive.
    """
    try:
        maps = explicit_maps(function)
        if maps is None:
            return as_operator(list(modules), function.in_shape)
    except ValueError as error:
        raise LostLayer(str(error)) from error
    return LinearOperator(function, merge(maps), transposed=False)


def seeded(origin: str) -> torch.Generator:
    """A generator that depends on a text alone, whichever process asks."""
    return torch.Generator("cpu").manual_seed(zlib.crc32(origin.encode()))
