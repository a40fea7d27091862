"""Projection onto `||M(W)|| <= c` by cutting planes.

For unit vectors u and v, `<u, M(W') v> <= c` holds for every W' within the bound: a *cut*, whether
u and v are singular vectors or not. The nearest point that satisfies all cuts found so far is a
small quadratic program in their multipliers, solved anew from the original W each time; its
distance is a lower bound on the distance of everything within the bound. New cuts come from
the leading triplets at that point, until none is above c any more.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from spectralclip._clipping.free_weights import Steerable
from spectralclip._linalg import nonnegative_qp, wide

SLICE = 2**16


@final
class CutSet:
    """Cuts of a layer that is linear in what moves, and the nearest point that satisfies them."""

    def __init__(self, movable: Steerable, max_norm: float) -> None:
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
        wished = self._excess + headroom * self._max_norm
        self._multipliers = nonnegative_qp(self._gram, wished, self._multipliers)
        # The dual's value at any multipliers is a lower bound, for the cuts as they are.
        quadratic = float(self._multipliers @ self._gram @ self._multipliers)
        dual = float(self._excess @ self._multipliers) - quadratic / 2
        # Values and gradients are rounded to the layer's precision, and with them the bound.
        rounded = 1 - 8 * torch.finfo(self._movable.start.dtype).eps
        self.lower_bound = max(self.lower_bound, rounded * math.sqrt(max(0.0, 2 * dual)))
        weights = self._multipliers.to(self._directions.device, self._directions.dtype)
        move = (weights @ self._directions.flatten(1)).reshape(self._movable.start.shape)
        return self._movable.start - move


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    """All inner products, in float64: cuts may be nearly parallel. In slices, to save memory."""
    total = torch.zeros(rows.shape[0], columns.shape[0], dtype=torch.float64, device="cpu")
    for left, right in zip(rows.split(SLICE, 1), columns.split(SLICE, 1), strict=True):
        total += (wide(left) @ wide(right).T).cpu()
    return total
