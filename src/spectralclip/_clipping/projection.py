"""What a projection onto the bound found, and the way back where it went too far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spectralclip._clipping.free_weights import FreeWeights
from spectralclip._spectrum import fresh_ritz


@final
@dataclass(frozen=True)
class _BackingUp:
    """How exactly the bound is met from within.

    Attributes:
        close: A norm so little below the bound, relatively, is left there: it costs as much
            distance, which is less than the gap that is allowed.
        rounds: Each divides what is missing by ten or more, since the norm is nearly linear.
        start_steps: Lanczos steps for the norm at the start.
        check_steps: Lanczos steps for the norm on the way.
    """

    close: float = 1e-3
    rounds: int = 4
    start_steps: int = 30
    check_steps: int = 40


BACKING_UP = _BackingUp()


@final
@dataclass(frozen=True)
class Projected:
    """A point, the largest norm seen there, and what it took."""

    point: Tensor
    norm: float
    applications: int
    rounds: int
    converged: bool
    lower_bound: float | None = None
    flops: float = 0.0  # outside of applications


def backed_up(
    movable: FreeWeights, found: Projected, max_norm: float, generator: torch.Generator
) -> Projected:
    """Back toward the start, as far as the bound allows.

    The norm is convex along the way: the chord between two points is above it, so that where
    the chord meets the bound, the norm is within.
    """
    far, norm, spent = 1.0, found.norm, found.applications
    if norm >= (1 - BACKING_UP.close) * max_norm:
        return found
    step = found.point - movable.start
    ritz = fresh_ritz(movable.operator(movable.start), BACKING_UP.start_steps, 1, generator)
    spent += ritz.applications
    near, above = 0.0, float(ritz.S[0])
    for _ in range(BACKING_UP.rounds):
        if norm >= (1 - BACKING_UP.close) * max_norm:
            break
        share = near + (far - near) * (above - max_norm) / (above - norm)
        op = movable.operator(movable.start + share * step)
        seen = fresh_ritz(op, BACKING_UP.check_steps, 1, generator)
        spent += seen.applications
        if float(seen.S[0]) > max_norm:
            near, above = share, float(seen.S[0])
        else:
            far, norm = share, float(seen.S[0])
    return replace(found, point=movable.start + far * step, norm=norm, applications=spent)
