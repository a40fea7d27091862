"""Moving a layer to the nearest one within the bound: the loops around cuts and Newton steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spectralclip._clipping.cutting_planes import CutSet
from spectralclip._clipping.douglas_rachford import clip_on_torus, torus_sides
from spectralclip._clipping.free_weights import ConvWeight, DirectWeight, Movable, Steerable
from spectralclip._linalg import nonnegative_qp, wide
from spectralclip._spectrum import Triplets, fresh_ritz, warmed_ritz

# Relative gaps between the distance and its lower bound, and budgets in applications.
GAP, CUT_BUDGET, BUDGET = 0.03, 1200, 6000
EXACT_GAP, EXACT_BUDGET = 0.005, 40000
# Each cut keeps two copies of the weights; with more of them, Newton steps do.
CUT_LIMIT = 300_000
MUCH = 0.85
WIDTH = 8  # triplets that are followed
START_STEPS, LOOK_STEPS = 30, 40
# Cuts aim a little below the bound, so that what they leave over is within it.
HEADROOM = 1e-3
TORUS_ITERATIONS = 10
PATIENCE = 40  # rounds without progress
BACKWARD_STEPS, CLOSE = 4, 1e-3


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


def nearest(
    movable: Movable, max_norm: float, norm: float, exact: bool, generator: torch.Generator
) -> Projected:
    """The nearest point within the bound, by what suits what moves; `norm` is that of the start."""
    if isinstance(movable, DirectWeight):
        return Projected(movable.clipped(max_norm), max_norm, 0, 1, True)
    assert isinstance(movable, Steerable)
    if not movable.is_linear:
        found = by_newton(movable, max_norm, BUDGET, generator)
        # Steps along a curved surface may have led astray: then the scale alone has to do.
        return found if found.converged else replace(found, point=movable.start)
    if exact:
        found = by_cuts(movable, max_norm, EXACT_GAP, EXACT_BUDGET, generator, look_steps=100)
        return backed_up(movable, found, max_norm, generator)
    # Where little is to be clipped, few cuts do it, and the torus is too blunt.
    if isinstance(movable, ConvWeight) and max_norm < MUCH * norm:
        on_torus = by_torus(movable, max_norm, BUDGET, generator)
        if on_torus is not None:
            return on_torus
    budget = CUT_BUDGET if movable.start.numel() <= CUT_LIMIT else 0
    found = by_cuts(movable, max_norm, GAP, budget, generator)
    if not found.converged:
        # Cuts come near the nearest point soon, and within the bound late.
        finished = by_newton(movable, max_norm, BUDGET, generator, found.point)
        found = replace(
            finished,
            applications=found.applications + finished.applications,
            rounds=found.rounds + finished.rounds,
            lower_bound=found.lower_bound,
        )
    return backed_up(movable, found, max_norm, generator)


def by_torus(
    movable: ConvWeight, max_norm: float, budget: int, generator: torch.Generator
) -> Projected | None:
    """Clip on a torus, then finish on the layer itself; None where no torus is near it."""
    conv = movable.conv
    sides = torus_sides(conv)
    if sides is None:
        return None
    clipped = clip_on_torus(conv, sides, max_norm, TORUS_ITERATIONS)
    found = by_newton(movable, max_norm, budget, generator, clipped.weight)
    found = replace(found, rounds=TORUS_ITERATIONS + found.rounds, flops=clipped.flops)
    return backed_up(movable, found, max_norm, generator)


def backed_up(
    movable: Steerable, found: Projected, max_norm: float, generator: torch.Generator
) -> Projected:
    """Back toward the start, as far as the bound allows.

    The norm is convex along the way: the chord between two points is above it, so that where
    the chord meets the bound, the norm is within.
    """
    far, norm, spent = 1.0, found.norm, found.applications
    if norm >= (1 - CLOSE) * max_norm:
        return found
    step = found.point - movable.start
    ritz = fresh_ritz(movable.operator(movable.start), START_STEPS, WIDTH, generator)
    spent += ritz.applications
    near, above = 0.0, float(ritz.S[0])
    for _ in range(BACKWARD_STEPS):
        if norm >= (1 - CLOSE) * max_norm:
            break
        share = near + (far - near) * (above - max_norm) / (above - norm)
        look = fresh_ritz(
            movable.operator(movable.start + share * step), LOOK_STEPS, WIDTH, generator
        )
        spent += look.applications
        if float(look.S[0]) > max_norm:
            near, above = share, float(look.S[0])
        else:
            far, norm = share, float(look.S[0])
    return replace(found, point=movable.start + far * step, norm=norm, applications=spent)


def by_cuts(
    movable: Steerable,
    max_norm: float,
    gap: float,
    budget: int,
    generator: torch.Generator,
    look_steps: int = 40,
) -> Projected:
    """Cutting planes, until the distance is within a relative `gap` of its lower bound.

    The last cuts would take the longest to find. So the known ones aim below the bound by as
    much as the gap allows, and what is not cut yet stays within it.
    """
    cuts = CutSet(movable, max_norm)
    point = movable.start

    def outcome(norm: float, converged: bool) -> Projected:
        bound = cuts.lower_bound if movable.knows_distance else None
        return Projected(point, norm, spent, rounds, converged, bound)

    op = movable.operator(point)
    ritz = fresh_ritz(op, START_STEPS, WIDTH, generator)
    spent, rounds, headroom = ritz.applications, 0, 0.0
    while True:
        if float(ritz.S[0]) <= max_norm:
            look = fresh_ritz(op, look_steps, 2 * WIDTH, generator)
            spent += look.applications
            moved = movable.length(wide(point) - wide(movable.start))
            near = moved <= (1 + gap) * cuts.lower_bound
            if near and float(look.S[0]) <= max_norm:
                return outcome(max(float(ritz.S[0]), float(look.S[0])), True)
            ritz = look
        if spent >= budget:
            return outcome(float(ritz.S[0]), False)
        values, lowest_cut = ritz.S, (1 - headroom) * max_norm
        above = values > lowest_cut
        chosen = above.nonzero()[:, 0].to(ritz.U.device)
        if len(chosen):
            gradients = movable.gradients(point, ritz.U[chosen], ritz.V[chosen])
            cuts.add(point, ritz.S[above], gradients)
        spent += len(chosen)
        headroom = min(cuts.headroom(0.8 * gap), 0.05)
        point = cuts.nearest(headroom)
        op = movable.operator(point)
        ritz = warmed_ritz(op, ritz, generator)
        spent += ritz.applications
        rounds += 1


def by_newton(
    movable: Steerable,
    max_norm: float,
    budget: int,
    generator: torch.Generator,
    point: Tensor | None = None,
    ritz: Triplets | None = None,
) -> Projected:
    """Joint Newton steps on all values above the bound, damped while far from it.

    Each step asks the smallest change of the weights that takes the linearized values down
    together. For layers that are not linear in what moves, and for finishing.
    """
    point = movable.start if point is None else point
    op = movable.operator(point)
    ritz = fresh_ritz(op, START_STEPS, WIDTH, generator) if ritz is None else ritz
    spent, rounds = ritz.applications, 0
    target = (1 - HEADROOM) * max_norm
    lowest, lowered_at = math.inf, 0
    while True:
        top = float(ritz.S[0])
        if top <= max_norm:
            look = fresh_ritz(op, LOOK_STEPS, WIDTH, generator)
            spent += look.applications
            if float(look.S[0]) <= max_norm:
                norm = max(top, float(look.S[0]))
                return Projected(point, norm, spent, rounds, True)
            ritz, top = look, float(look.S[0])
        if top < 0.99 * lowest:
            lowest, lowered_at = top, rounds
        if spent >= budget or rounds - lowered_at > PATIENCE or not math.isfinite(top):
            return Projected(point, top, spent, rounds, False)
        share = 1.0 if top <= 1.02 * max_norm else 0.25
        values, floor = ritz.S, max(target, (1 - share / 2) * top)
        above = values > floor
        chosen = above.nonzero()[:, 0].to(ritz.U.device)
        gradients = movable.gradients(point, ritz.U[chosen], ritz.V[chosen])
        spent += len(chosen)
        directions = movable.solve(gradients).flatten(1)
        gram = wide(gradients.flatten(1)) @ wide(directions).T
        multipliers = nonnegative_qp(gram, share * (ritz.S[above] - target))
        move = multipliers.to(directions) @ directions
        point = point - move.reshape(point.shape)
        op = movable.operator(point)
        ritz = warmed_ritz(op, ritz, generator)
        spent += ritz.applications
        rounds += 1
