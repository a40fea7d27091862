"""How the work after a step grows: with the number of layers, and with the size of the image."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.session import Session
from benchmarks.training.methods import (
    FASTCLIP,
    OURS,
    SCALE,
    attached,
    bounded_layers,
    clip_is_due,
    make_clip_due,
    num_matvecs,
    weight_of,
)
from benchmarks.training.models import seeded, stack
from benchmarks.training.overhead import amortized
from oracle import TrackedNorms

COMPARED = (FASTCLIP, SCALE, OURS)
LAYERS = (1, 2, 4, 8, 16, 32)
SIDES = (8, 16, 32, 64, 128)
CHANNELS = 32
SIDE, DEPTH = 16, 4  # of the image where layers grow in number, and of the stack where it grows
ROUNDS, WARM_UP = 50, 10
RATE = 0.002


class Growth:
    """Moves the weights of convolutions by steps of a given norm, away from where they begin.

    A step is the sum of the weights as they were at the beginning and of a random direction, each
    of norm one, scaled to the norm `rate`: what was there grows, and something else comes with it.
    The random direction is the same at each step, or a new one each time.
    """

    def __init__(
        self, model: nn.Sequential, example: Tensor, rate: float, fresh: bool, seed: int = 0
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._fresh = fresh
        self._weights = [weight_of(layer) for layer in model]
        self._outward = [weight.detach().clone() for weight in self._weights]
        draws = [self._draw(weight) for weight in self._weights]
        # Those of the first draw; others of the same shape differ by a percent.
        norms = self._norms_with(draws, model, example)
        self._scales = [1 / norm for norm in norms]
        self._random = [scale * draw for scale, draw in zip(self._scales, draws, strict=True)]
        sums = [a + b for a, b in zip(self._outward, self._random, strict=True)]
        self._lengths = [rate / norm for norm in self._norms_with(sums, model, example)]

    @torch.no_grad()
    def step(self) -> None:
        for index, weight in enumerate(self._weights):
            direction = self._random[index]
            if self._fresh:
                direction = self._scales[index] * self._draw(weight)
            weight.add_(self._outward[index] + direction, alpha=self._lengths[index])

    def _draw(self, weight: Tensor) -> Tensor:
        return torch.randn(weight.shape, generator=self._generator)

    @torch.no_grad()
    def _norms_with(
        self, weights: list[Tensor], model: nn.Sequential, example: Tensor
    ) -> list[float]:
        for own, other in zip(self._weights, weights, strict=True):
            own.copy_(other)
        norms = list(TrackedNorms(bounded_layers(model, example)).norms().values())
        for own, before in zip(self._weights, self._outward, strict=True):
            own.copy_(before)
        return norms


@torch.no_grad()
def scale_to_bound(model: nn.Module, example: Tensor) -> None:
    """Give every layer the norm one."""
    layers = bounded_layers(model, example)
    for name, norm in TrackedNorms(layers).norms().items():
        weight_of(layers[name].modules[0]).div_(norm)


@dataclass(frozen=True)
class GrowthRow:
    """One method on one stack of equal layers."""

    varied: str  # "layers" or "side"
    layers: int
    side: int
    method: str
    seconds: float  # after a step: mean, FastClip's clips at their true rate
    median_seconds: float
    num_matvecs: float  # a step and layer; 0 where they are not counted


def measure(session: Session) -> dict[str, Any]:
    """Both series."""
    layers = LAYERS[:2] if session.quick else LAYERS
    sides = SIDES[:2] if session.quick else SIDES
    rounds = 4 if session.quick else ROUNDS
    rows: list[GrowthRow] = []
    for count in layers:
        rows += _measure_stack(session, "layers", count, SIDE, rounds)
    for side in sides:
        rows += _measure_stack(session, "side", DEPTH, side, rounds)
    return {"rate": RATE, "rounds": rounds, "rows": [asdict(row) for row in rows]}


def _measure_stack(
    session: Session, varied: str, layers: int, side: int, rounds: int
) -> list[GrowthRow]:
    steppers = [_Stepper(name, layers, side) for name in COMPARED]
    for round_ in range(-WARM_UP, rounds):
        shift = round_ % len(steppers)
        for stepper in steppers[shift:] + steppers[:shift]:
            stepper.step(clip=round_ in (rounds // 2, rounds - 1), counts=round_ >= 0)
    rows = [stepper.row(varied) for stepper in steppers]
    said = ", ".join(f"{row.method} {1e3 * row.seconds:.2f} ms" for row in rows)
    session.say(f"growth: {layers} layers, side {side}: {said}")
    return rows


class _Stepper:
    """One method with its own stack, grown by hand."""

    def __init__(self, name: str, layers: int, side: int) -> None:
        self._name, self._layers, self._side = name, layers, side
        model = seeded(lambda: stack(layers, CHANNELS), 0)
        smaller = min(side, 16)  # where norms are nearly the same, and found sooner
        example = torch.zeros(1, CHANNELS, smaller, smaller)
        scale_to_bound(model, example)
        self._growth = Growth(model, example, RATE, fresh=True)
        example = torch.zeros(1, CHANNELS, side, side)
        self._attachment = attached(name, model, example, None)
        self._taken: list[tuple[float, bool]] = []
        self._work: list[tuple[float, bool]] = []

    def step(self, clip: bool, counts: bool) -> None:
        if clip and self._name == FASTCLIP:
            make_clip_due(self._attachment)
        self._growth.step()
        before = num_matvecs(self._attachment)
        began = time.perf_counter()
        self._attachment.step()
        ended = time.perf_counter()
        if counts:
            due = clip_is_due(self._name, self._attachment)
            self._taken.append((ended - began, due))
            self._work.append((num_matvecs(self._attachment) - before, due))

    def row(self, varied: str) -> GrowthRow:
        return GrowthRow(
            varied,
            self._layers,
            self._side,
            self._name,
            amortized(self._taken),
            statistics.median(seconds for seconds, _ in self._taken),
            amortized(self._work) / self._layers,
        )
