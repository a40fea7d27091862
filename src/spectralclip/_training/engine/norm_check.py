"""A layer's norm itself, measured now and then, to see how good its estimates are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._linalg import LanczosRun
from spectralclip._operators import AffineFunction, LinearOperator
from spectralclip._spectrum import RitzTracker, random_rows
from spectralclip._training.engine.tuning import CHECK, GROWTH
from spectralclip._training.live import NonFiniteLayer, live_operator
from spectralclip._training.method import seeded
from spectralclip._training.state import saved_vectors


@final
class Calibration:
    """A norm over its estimate, as checks have shown it: quick to go up, slow to come down.

    Attributes:
        value: What an estimate is multiplied with.
    """

    def __init__(self) -> None:
        self.value = 1.0

    def begin(self, norm: float, estimate: float) -> None:
        """Take in the first check, when estimates may still be low for want of steps."""
        self.value = min(1.0, _ratio(norm, estimate))

    def note(self, norm: float, estimate: float) -> None:
        """Take in another check."""
        found = _ratio(norm, estimate)
        self.value = max(found, self.value + GROWTH.forgetting * (found - self.value))


def _ratio(norm: float, estimate: float) -> float:
    if not (0 < norm < math.inf and 0 < estimate < math.inf):
        return 1.0
    least, most = GROWTH.ratios
    return min(max(norm / estimate, least), most)


@final
@dataclass(frozen=True)
class Target:
    """Where the estimate of a layer's norm is to be after a step.

    Attributes:
        goal: Where to go while all is calm, below the bound.
        bound: The estimate that the bound stands for.
        stride: How far the weights have moved in this step, as a share of their size.
    """

    goal: float
    bound: float
    stride: float

    def margin(self, most: float) -> float:
        """What a norm above its target is multiplied with, `1 - most` at least."""
        return 1 - min(most, GROWTH.glide * self.stride)


@final
class GrowthMonitor:
    """How fast a norm has been growing, from which follows how much of it goes unseen.

    Vectors lag behind weights: what grows fast has grown further than they show. Fast growth, as
    in the first steps of Adam, therefore lowers the target for a while.

    Attributes:
        norm: The norm after the last step, NaN if there was none.
        growth: The largest relative growth in a step, lately.
        leap: The same over a longer time: what may come again.
        target: Of the last step.
    """

    def __init__(self) -> None:
        self.norm, self.growth, self.leap = math.nan, GROWTH.first, GROWTH.first
        self.target = math.inf

    def lowered(self, target: Target) -> float:
        """The target of this step, which comes down no faster than the weights move."""
        wanted = target.goal * (1 - min(GROWTH.unseen * self.growth, GROWTH.most_unseen))
        self.target = max(wanted, min(self.target, target.bound) * target.margin(1.0))
        return self.target

    def note(self, seen: float, kept: float, steps: int = 1) -> None:
        """Take note of what was seen after so many steps, and of what was left of it."""
        grown = 0.0 if math.isnan(self.norm) else max(0.0, seen / max(self.norm, 1e-30) - 1)
        self.growth = max(GROWTH.calming**steps * self.growth, grown / steps)
        self.leap = max(GROWTH.forgiving**steps * self.leap, grown / steps)
        self.norm = kept

    def state(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state(self, state: Mapping[str, float]) -> None:
        vars(self).update({key: float(state[key]) for key in vars(self)})


@final
class Movement:
    """How far tensors move from step to step, seen in some of their numbers.

    Attributes:
        samples: Some numbers of each tensor, as the last step left them.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.samples: list[Tensor] = []
        self.leave(tensors)

    def stride(self, tensors: Sequence[Tensor]) -> float:
        """The largest change of a tensor since then, as a share of its size."""
        largest = 0.0
        for old, tensor in zip(self.samples, tensors, strict=True):
            change = float(torch.linalg.vector_norm((_sample(tensor) - old).float()))
            size = float(torch.linalg.vector_norm(old.float()))
            share = change / max(size, 1e-30)
            largest = max(largest, share if math.isfinite(share) else math.inf)
        return largest

    def leave(self, tensors: Sequence[Tensor]) -> None:
        """Remember the tensors as they are now."""
        self.samples = [_sample(tensor).clone() for tensor in tensors]

    def state(self) -> list[Tensor]:
        return [sample.clone() for sample in self.samples]

    def load_state(self, state: Sequence[Tensor]) -> None:
        pairs = zip(self.samples, state, strict=True)
        self.samples = [saved.to(own, copy=True) for own, saved in pairs]


@final
class CheckSchedule:
    """When to check a layer itself: at each step while its estimates cannot be relied on.

    What estimates miss comes from the movement of the weights, which calls for the next check. How
    much is let pass grows with each check that finds the estimate right, and begins anew with one
    that does not: a training that has calmed down is hardly ever checked.

    Attributes:
        trust: How far the weights may move before the next check, as a share of their size.
        moved: How far they have moved since the last one.
        waited: Steps since then.
    """

    def __init__(self) -> None:
        self.trust, self.moved, self.waited = 0.0, math.inf, 0

    def is_due(self, stride: float, longest: int) -> bool:
        """Whether to check now, after another step; at the latest after `longest` of them."""
        self.waited += 1
        self.moved += stride
        return self.moved > self.trust or self.waited >= longest

    def note(self, *, surprised: bool) -> None:
        """Take note of a check."""
        self.trust = 0.0 if surprised else min(self.trust + CHECK.trust, CHECK.most_trust)
        self.moved, self.waited = 0.0, 0

    def state(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state(self, state: Mapping[str, float]) -> None:
        vars(self).update({key: type(own)(state[key]) for key, own in vars(self).items()})


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().flatten()
    return flat[:: 1 + flat.numel() // CHECK.sampled]


@final
class NormCheck:
    """The layer itself, at its true input shapes, checked now and then.

    Attributes:
        calibration: The norm that was found, over the estimate that was at hand then.
        num_matvecs: Vectors sent through the layer.
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
        self._movement = Movement(self._tensors())
        self.calibration, self.num_matvecs = Calibration(), 0

    def stride(self) -> float:
        """How far the weights have moved since the last step, as a share of their size."""
        return self._movement.stride(self._tensors())

    def is_due(self, stride: float, longest: int) -> bool:
        """Whether to check the layer after this step; never if `longest` is 0."""
        return self._schedule.is_due(stride, longest) and longest > 0

    def leave(self) -> None:
        """Remember the weights as a step has left them."""
        self._movement.leave(self._tensors())

    def follow(self) -> float:
        """The norm by a vector that is known, which may have been overtaken by another."""
        return self._largest(self._follow)

    def search(self) -> float:
        """The norm by a Lanczos run; NaN for weights that are not finite."""
        return self._largest(self._search)

    def compare(self, estimate: float, bound: float, step: int) -> float:
        """Search for the norm, and compare it with an estimate; the norm that was found."""
        norm, self.latest = self.search(), step
        expected = self.calibration.value * estimate
        surprised = norm > CHECK.far * bound and not norm <= (1 + CHECK.surprise) * expected
        self._schedule.note(surprised=surprised or not math.isfinite(norm))
        self.calibration.note(norm, estimate)
        return norm

    def _largest(self, norm_at: Callable[[int], float]) -> float:
        """Over the input shapes; NaN for weights that are not finite."""
        try:
            norms = [norm_at(index) for index in range(len(self._functions))]
        except (NonFiniteLayer, OverflowError):
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
        return {
            "schedule": self._schedule.state(),
            "movement": self._movement.state(),
            "latest": self.latest,
            "vectors": [tracker.vectors for tracker in self._trackers],
            "changes": [tracker.changes for tracker in self._trackers],
            "calibration": self.calibration.value,
            "draws": self._draws,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
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
        self.calibration.value = float(state["calibration"])
        self._draws, self.latest = int(state["draws"]), int(state["latest"])
        self._schedule.load_state(state["schedule"])
        self._movement.load_state(state["movement"])

    def _follow(self, index: int) -> float:
        """A round from the last vector, and more where another one has taken over."""
        tracker = self._trackers[index]
        if tracker.vectors is None:
            return self._search(index)
        op = live_operator(self._functions[index])
        for _ in range(CHECK.rounds):
            seen = tracker.refresh(op)
            self.num_matvecs += seen.num_matvecs
            norm = float(seen.S[0])
            if not math.isfinite(norm):
                return math.nan
            tracker.keep()
            if tracker.gain <= CHECK.settled * norm:
                break
        return norm

    def _search(self, index: int) -> float:
        """Lanczos from the last vector and noise, which finds what has come up since."""
        op, tracker = live_operator(self._functions[index]), self._trackers[index]
        generator = seeded(f"{self._origin}, {index}, {self._draws}")
        self._draws += 1
        start = random_rows(op, 1, generator)
        if tracker.vectors is not None:
            start = tracker.vectors + start / start.norm()
        norm, vector, steps = _leading_pair(op, start)
        self.num_matvecs += 2 * steps
        if math.isfinite(norm):
            tracker.start(vector)
        return norm


def _leading_pair(op: LinearOperator, start: Tensor) -> tuple[float, Tensor, int]:
    """The largest Ritz value after a fixed number of steps, its vector, and how many there were."""
    run = LanczosRun(op.gram_rows, start)
    while run.step() and run.steps < min(CHECK.steps, op.shape[1]):
        pass
    if not math.isfinite(run.alphas[-1]):
        return math.nan, start, run.steps
    values, coordinates = run.ritz()
    return max(float(values[0]), 0.0) ** 0.5, run.rows(coordinates[:, :1]), run.steps
