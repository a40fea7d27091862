"""When a Ritz pair is accurate."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class StoppingConstants(NamedTuple):
    """What the stopping rule is steered by, measured on random convolutions (docs/solvers.md)."""

    # Residuals of so many eps times the largest value are rounding: 4608 products a sum had eight.
    rounding: float = 20
    judged_again: float = 1.05  # a pair is, when it is finished, with other rounding
    # Over `tol^(3/4)`, the residual up to which a gap is believed. With it, 1 of 192 runs for the
    # norm had an error above 1.5 tol.
    safety: float = 0.39
    # The same for the norm of layers other than zero-padded or circular convolutions: their corners
    # have isolated vectors, which a random start meets late.
    safety_isolated: float = 0.25
    # The same where the smaller side is small: a missed value is far away there.
    safety_small: float = 0.1
    # Over `sqrt(tol)`, what a wide block of random vectors may stop at: it hides less.
    wide: float = 0.17
    wide_from: int = 12  # blocks are wide from this width on, and fully so at twice that


STOPPING = StoppingConstants()
ROUNDING = STOPPING.rounding


class StoppingRule(NamedTuple):
    """The stopping rule for Ritz pairs (theta, v) of `A = M^T M` with residuals r.

    Some eigenvalue lies within r of theta, so the relative error of sqrt(theta) is at most
    `linear = r / (2 theta)`; once the pair is separated from the rest of the spectrum by a gap
    it is about `r^2 / gap / (2 theta)`, which is far smaller (Kato and Temple). The gap is
    read off the Ritz values and may be too large while the rest is still hidden; so the
    second estimate counts only when `linear` is below `safety * tol^(3/4)`, half-way between
    what the two would ask for; in a wide block, below `0.17 sqrt(tol)`. The page on solvers in
    the documentation says how often this fails.
    """

    tol: float
    eps: float
    width: int = 1
    safety: float = STOPPING.safety

    def estimates(self, theta: Tensor, residual: Tensor, separated_from: Tensor) -> Tensor:
        """Estimated relative errors of `sqrt(theta)`; infinite where the pair is too raw."""
        linear, estimate = self._linear_and_best(theta, residual, separated_from)
        estimate[linear > self._limit] = torch.inf
        return estimate

    def accepts(self, S: Tensor, residual: Tensor, beside: float | None, largest: float) -> Tensor:
        """Which values of triplets `M v = s u` with residuals `||M^T u - s v||` are accurate.

        `beside` is the first value behind those that the iteration works on; without it a pair
        is separated from nothing, and the residual alone counts. Where the residual is rounding,
        the iteration has ended, and a gap is as good as it will get: it is believed where that
        leaves a tenth of the tolerance.
        """
        theta = S**2
        rest = theta if beside is None else torch.full_like(theta, beside**2)
        linear, estimate = self._linear_and_best(theta, S * residual, rest)
        again = STOPPING.judged_again
        ripe = (linear <= again * self._limit) & (estimate <= again * self.tol)
        return ripe | (self.settled(residual, largest) & (estimate <= self.tol / 10))

    def settled(self, residual: Tensor, largest: float) -> Tensor:
        """Where a residual of `M` is rounding: no iteration gets below."""
        return residual <= ROUNDING * self.eps * largest

    @property
    def wide(self) -> float:
        """How wide the block is, from 0 to 1."""
        return min(max(self.width / STOPPING.wide_from - 1, 0.0), 1.0)

    @property
    def _limit(self) -> float:
        wide = self.wide * STOPPING.wide * math.sqrt(self.tol)
        return max(self.safety * math.pow(self.tol, 0.75), wide)

    def _linear_and_best(
        self, theta: Tensor, residual: Tensor, separated_from: Tensor
    ) -> tuple[Tensor, Tensor]:
        tiny = torch.finfo(theta.dtype).tiny
        scale = 2 * theta.clamp_min(tiny)
        linear = residual / scale
        gap = (theta - separated_from).clamp_min(tiny)
        return linear, torch.minimum(linear, residual**2 / gap / scale)
