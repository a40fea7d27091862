"""A layer's norm itself, looked at now and then, to see how good its estimates are."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._affine import AffineFunction, Shape
from spectralclip._attachment_state import saved_vectors
from spectralclip._explicit import explicit_maps, merge
from spectralclip._operator import LinearOperator, as_operator
from spectralclip._solvers import Lanczos
from spectralclip._starts import random_rows
from spectralclip._svds import ConvergenceWarning, svds
from spectralclip._track import RitzTracker

# How well a norm is found, at what price at most, and how much noise a warm start has: noise is
# what finds values that have come up since.
TOLERANCE, COSTLY_TOLERANCE, MOST_APPLICATIONS, NOISE = 1e-3, 1e-2, 100, 0.3
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
class NormCheck:
    """The layer itself, at its true input shapes, looked at now and then.

    Attributes:
        ratio: The norm that was found, over the estimate that was at hand then.
        caution: What a bound is divided by: how far estimates have been too low, at least 1.
        applications: Vectors sent through the layer.
        is_costly: Whether an application costs so much that less precision has to do.
    """

    def __init__(
        self, modules: Sequence[nn.Module], in_shapes: Sequence[Shape], origin: str
    ) -> None:
        self._modules = list(modules)
        self._functions = [AffineFunction(self._modules, shape) for shape in in_shapes]
        self._origin, self._draws = origin, 0
        self._trackers = [RitzTracker(1) for _ in in_shapes]
        self.ratio, self.caution, self.applications = 1.0, 1.0, 0
        self.is_costly = False

    def compare(self, estimate: float, *, thorough: bool, hints: Sequence[Tensor] = ()) -> float:
        """Look, and compare with an estimate; the norm that was found.

        Args:
            estimate: What was known of the norm.
            thorough: Search for the norm, instead of following a vector that is known.
            hints: For each input shape, inputs that may be near the leading singular vector.
        """
        is_first = self._draws == 0
        try:
            norm = max(
                self._search(index)
                if thorough
                else self._follow(index, hints[index] if hints else None)
                for index in range(len(self._functions))
            )
        except (LostLayer, OverflowError):
            return math.nan
        if math.isfinite(norm) and norm > 0 and estimate > 0:
            self.ratio = min(max(norm / estimate, LEAST_RATIO), MOST_RATIO)
            # Quick to become careful, slow to forget.
            # What is still cold at the first look says nothing about later ones.
            called_for = 1.0 if is_first else max(1.0, self.ratio)
            self.caution = max(called_for, self.caution + FORGETTING * (called_for - self.caution))
        return norm

    def state(self) -> dict[str, Any]:
        """What is remembered."""
        return {
            "vectors": [tracker.vectors for tracker in self._trackers],
            "changes": [tracker.changes for tracker in self._trackers],
            "ratio": self.ratio,
            "caution": self.caution,
            "draws": self._draws,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for index, (tracker, function) in enumerate(
            zip(self._trackers, self._functions, strict=True)
        ):
            size = (math.prod(function.in_shape),)
            tracker.vectors, tracker.changes = (
                None
                if rows is None
                else saved_vectors(rows, size).to(function.device, function.dtype, copy=True)
                for rows in (state["vectors"][index], state["changes"][index])
            )
        self.ratio, self.caution = float(state["ratio"]), float(state["caution"])
        self._draws = int(state["draws"])

    @property
    def is_new(self) -> bool:
        """Whether it has not looked yet."""
        return self._draws == 0

    def _follow(self, index: int, hints: Tensor | None) -> float:
        """A round from the last vector, and more where another one has taken over."""
        tracker = self._trackers[index]
        if tracker.vectors is None:
            return self._search(index)
        op = live_operator(self._modules, self._functions[index])
        others = None if hints is None else op.input_rows(hints.to(op.device, op.dtype))
        for _ in range(FOLLOWING_ROUNDS):
            seen, others = tracker.look(op, others=others), None
            self.applications += seen.applications
            norm = float(seen.S[0])
            if not math.isfinite(norm):
                return math.nan
            tracker.keep()
            if seen.rise <= SETTLED * norm:
                break
        return norm

    def _search(self, index: int) -> float:
        """Lanczos from the last vector and some noise, which finds what has come up since."""
        op, tracker = live_operator(self._modules, self._functions[index]), self._trackers[index]
        generator = seeded(f"{self._origin}, {index}, {self._draws}")
        self._draws += 1
        start = random_rows(op, 1, generator)
        if tracker.vectors is not None:
            start = tracker.vectors + NOISE * start / start.norm()
        if not bool(torch.isfinite(op.forward_rows(start)).all()):
            return math.nan
        solver, v0 = Lanczos(max_applications=MOST_APPLICATIONS), op.input_tensor(start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            tol = COSTLY_TOLERANCE if self.is_costly else TOLERANCE
            found = svds(op, op.in_shape, 1, tol=tol, solver=solver, v0=v0)
        self.applications += found.applications + 1
        tracker.start(op.input_rows(found.V))
        return float(found.S[0])


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
