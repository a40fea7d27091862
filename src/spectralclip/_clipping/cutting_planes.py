"""Projection onto `||M(W)|| <= c` by cutting planes.

For unit vectors u and v, `<u, M(W') v> <= c` holds for every W' within the bound: a *cut*, whether
u and v are singular vectors or not. The nearest point that satisfies all cuts found so far is a
small quadratic program in their multipliers, solved anew from the original W each time; its
distance is a lower bound on the distance of everything within the bound. New cuts come from
the leading triplets at that point, until none is above c any more.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._clipping.free_weights import FreeWeights
from spectralclip._clipping.newton import Projected
from spectralclip._linalg import nonnegative_qp, wide
from spectralclip._spectrum import fresh_ritz, warmed_ritz


class CutSettings(NamedTuple):
    """How far cuts are driven. Measured on 60 layers at bounds of 0.3 to 0.95 of their norms."""

    # Between the distance and its lower bound, relatively: 1.010 in the median, 1.017 at worst.
    gap: float = 0.03
    budget: int = 1200  # vectors sent through M: the median was 602, the most 2002
    # Each cut keeps two copies of the weight. Beyond so many numbers in a weight Newton steps take
    # over, which leave 1.03 in the median and keep none.
    most_numbers: int = 300_000
    # How much of the gap goes into aiming below the bound. On 16 small convolutions 476 vectors
    # were sent through M, median; without any, 6000 were not enough.
    gap_share: float = 0.8
    most_headroom: float = 0.05  # at most so far below the bound, as a share of it
    width: int = 8  # triplets that are followed; 281 values above the bound took 29 cuts
    start_steps: int = 30  # Lanczos steps of the first search
    check_steps: int = 40  # of the one that has the last word, from a new random vector


CUTS = CutSettings()
EXACT_CUTS = CutSettings(gap=0.005, budget=40000, most_numbers=2**62, check_steps=100)
SLICE = 2**16  # entries of a weight that are widened at once


@final
class CutSet:
    """Cuts of a layer that is linear in what moves, and the nearest point that satisfies them."""

    def __init__(self, movable: FreeWeights, max_norm: float) -> None:
        self._movable, self._max_norm = movable, max_norm
        shape = movable.start.shape
        self._gradients = movable.start.new_empty(0, *shape)
        self._directions = movable.start.new_empty(0, *shape)
        self._gram = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        self._excess = torch.empty(0, dtype=torch.float64, device="cpu")
        self._multipliers = torch.empty(0, dtype=torch.float64, device="cpu")
        self.lower_bound = 0.0

    def __len__(self) -> int:
        return self._excess.shape[0]

    def add(self, point: Tensor, values: Tensor, gradients: Tensor) -> None:
        """Add cuts by values and gradients of `<u, M v>` at a point; drop those of no use."""
        kept = self._multipliers > 0
        directions = self._movable.solve(gradients)
        index = kept.nonzero()[:, 0].to(gradients.device)
        self._gradients = torch.cat([self._gradients[index], gradients])
        self._directions = torch.cat([self._directions[index], directions])
        new = _products(self._gradients.flatten(1), directions.flatten(1))
        old = self._gram[kept][:, kept]
        count = old.shape[0]
        self._gram = torch.cat([torch.cat([old, new[:count]], 1), new.T], 0)
        self._gram = (self._gram + self._gram.T) / 2
        back = (wide(self._movable.start) - wide(point)).flatten()
        at_start = values + (wide(gradients.flatten(1)) @ back).cpu()
        self._excess = torch.cat([self._excess[kept], at_start - self._max_norm])
        fresh = torch.zeros(gradients.shape[0], dtype=torch.float64, device="cpu")
        self._multipliers = torch.cat([self._multipliers[kept], fresh])

    def headroom(self, gap: float) -> float:
        """How far below the bound one may aim, relatively, before the distance grows by `gap`.

        Lowering the bound by d lengthens the distance by `d sum(lambda) / distance`.
        """
        squared = float(self._multipliers @ self._gram @ self._multipliers)
        total = self._max_norm * float(self._multipliers.sum())
        return gap * squared / total if total > 0 else 0.0

    def nearest(self, headroom: float) -> Tensor:
        """The nearest point to the start within all cuts, each tightened a little."""
        target = self._excess + headroom * self._max_norm
        self._multipliers = nonnegative_qp(self._gram, target, self._multipliers)
        # The dual's value at any multipliers is a lower bound, for the cuts as they are.
        quadratic = float(self._multipliers @ self._gram @ self._multipliers)
        dual = float(self._excess @ self._multipliers) - quadratic / 2
        # Values and gradients are rounded to the layer's precision, and with them the bound.
        rounded = 1 - 8 * torch.finfo(self._movable.start.dtype).eps
        self.lower_bound = max(self.lower_bound, rounded * math.sqrt(max(0.0, 2 * dual)))
        weights = self._multipliers.to(self._directions.device, self._directions.dtype)
        move = (weights @ self._directions.flatten(1)).reshape(self._movable.start.shape)
        return self._movable.start - move


def by_cuts(
    movable: FreeWeights, max_norm: float, settings: CutSettings, generator: torch.Generator
) -> Projected:
    """Cutting planes, until the distance is within a relative gap of its lower bound.

    The last cuts would take the longest to find. So the known ones aim below the bound by as
    much as the gap allows, and what is not cut yet stays within it.
    """
    cuts = CutSet(movable, max_norm)
    point = movable.start
    budget = settings.budget if point.numel() <= settings.most_numbers else 0

    def outcome(norm: float, converged: bool) -> Projected:
        bound = cuts.lower_bound if movable.knows_distance else None
        return Projected(point, norm, spent, rounds, converged, bound)

    op = movable.operator(point)
    ritz = fresh_ritz(op, settings.start_steps, settings.width, generator)
    spent, rounds, headroom = ritz.num_matvecs, 0, 0.0
    while True:
        if float(ritz.S[0]) <= max_norm:
            check = fresh_ritz(op, settings.check_steps, 2 * settings.width, generator)
            spent += check.num_matvecs
            moved = movable.length(wide(point) - wide(movable.start))
            near = moved <= (1 + settings.gap) * cuts.lower_bound
            if near and float(check.S[0]) <= max_norm:
                return outcome(max(float(ritz.S[0]), float(check.S[0])), True)
            ritz = check
        if spent >= budget:
            return outcome(float(ritz.S[0]), False)
        above = (1 - headroom) * max_norm < ritz.S
        chosen = above.nonzero()[:, 0].to(ritz.U.device)
        if len(chosen):
            gradients = movable.gradients(point, ritz.U[chosen], ritz.V[chosen])
            cuts.add(point, ritz.S[above], gradients)
        spent += len(chosen)
        headroom = min(cuts.headroom(settings.gap_share * settings.gap), settings.most_headroom)
        point = cuts.nearest(headroom)
        op = movable.operator(point)
        ritz = warmed_ritz(op, ritz, generator)
        spent += ritz.num_matvecs
        rounds += 1


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    """All inner products, in float64: cuts may be nearly parallel. In slices, to save memory."""
    total = torch.zeros(rows.shape[0], columns.shape[0], dtype=torch.float64, device="cpu")
    for left, right in zip(rows.split(SLICE, 1), columns.split(SLICE, 1), strict=True):
        total += (wide(left) @ wide(right).T).cpu()
    return total
