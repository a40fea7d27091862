"""The nearest point within the bound, by what suits the layer."""

from __future__ import annotations

import torch

from spectralclip._clipping.cutting_planes import CUTS, EXACT_CUTS, by_cuts
from spectralclip._clipping.douglas_rachford import SPLITTING, clip_on_torus, torus_sides
from spectralclip._clipping.free_weights import FreeWeights
from spectralclip._clipping.newton import NEWTON, Projected, by_newton
from spectralclip._spectrum import fresh_ritz

# On 16 convolutions, from 2.7 % below the bound: 1.1, 0.3, 0.1 and 0.07 % after one to four.
BACKWARD_STEPS = 4


def nearest(
    movable: FreeWeights, max_norm: float, norm: float, exact: bool, generator: torch.Generator
) -> Projected:
    """The nearest point within the bound, by what suits what moves; `norm` is that of the start."""
    if movable.matrices is not None:
        return Projected(movable.matrices.clipped(max_norm), max_norm, 0, 1, True)
    if not movable.is_linear:
        found = by_newton(movable, max_norm, generator)
        # Steps along a curved surface may have led astray: then the scale alone has to do.
        return found if found.converged else found._replace(point=movable.start)
    sides = None
    if movable.conv is not None and max_norm < SPLITTING.least_cut * norm and not exact:
        sides = torus_sides(movable.conv)
    if movable.conv is not None and sides is not None:
        found = clip_on_torus(movable.conv, sides, max_norm)
    else:
        found = by_cuts(movable, max_norm, EXACT_CUTS if exact else CUTS, generator)
    if not found.converged and not exact:
        # Cuts and the torus come near the nearest point soon, and within the bound late.
        finished = by_newton(movable, max_norm, generator, found.point)
        found = finished._replace(
            num_matvecs=found.num_matvecs + finished.num_matvecs,
            rounds=found.rounds + finished.rounds,
            lower_bound=found.lower_bound,
            flops=found.flops,
        )
    return _backed_up(movable, found, max_norm, generator)


def _backed_up(
    movable: FreeWeights, found: Projected, max_norm: float, generator: torch.Generator
) -> Projected:
    """Back toward the start, as far as the bound allows.

    The norm is convex along the way: the chord between two points is above it, so that where
    the chord meets the bound, the norm is within.
    """
    far, norm, spent = 1.0, found.norm, found.num_matvecs
    if norm >= (1 - NEWTON.headroom) * max_norm:
        return found
    step = found.point - movable.start
    ritz = fresh_ritz(movable.operator(movable.start), NEWTON.start_steps, 1, generator)
    spent += ritz.num_matvecs
    near, above = 0.0, float(ritz.S[0])
    for _ in range(BACKWARD_STEPS):
        if norm >= (1 - NEWTON.headroom) * max_norm:
            break
        share = near + (far - near) * (above - max_norm) / (above - norm)
        op = movable.operator(movable.start + share * step)
        seen = fresh_ritz(op, NEWTON.check_steps, 1, generator)
        spent += seen.num_matvecs
        if float(seen.S[0]) > max_norm:
            near, above = share, float(seen.S[0])
        else:
            far, norm = share, float(seen.S[0])
    return found._replace(point=movable.start + far * step, norm=norm, num_matvecs=spent)
