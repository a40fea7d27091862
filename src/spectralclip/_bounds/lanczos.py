"""Both ends of a norm from one Lanczos run with a random start, for a layer of any kind.

A Ritz value is a lower bound however it was found. It says nothing of what the start has missed;
that the start is random does. Unless it was nearly orthogonal to the leading singular vector, which
has a known small probability, the coefficients of the recurrence exclude all values beyond a
little above the largest Ritz value. No structure of the layer is needed, only its products.

The same run serves where an upper end is known beforehand, to find the lower one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._bounds.interval import Interval
from spectralclip._bounds.views import View
from spectralclip._linalg import LanczosRun, on_host, sent
from spectralclip._operators import LinearOperator
from spectralclip._spectrum import filtered_row, random_rows


class SearchConstants(NamedTuple):
    """What a run is limited by."""

    # At most so many. One percent at a failure of 1e-6 takes 45 to 60 of them; a width of 1e-4 took
    # 179 at most, on fourteen layers of all kinds.
    steps: int = 300
    basis_entries: int = 2**28  # numbers that the basis may have: a gigabyte in float32
    least_steps: int = 40  # but so many in any case
    # Roundings that a value is moved by: residuals of 4608 products a sum were seen to have eight.
    margin: int = 100


SEARCH = SearchConstants()


def rounding_margin(dtype: torch.dtype) -> float:
    """Relative margin for a number that a few products in this precision have made."""
    return max(SEARCH.margin * torch.finfo(dtype).eps, 1e-9)


# --- What a run excludes --------------------------------------------------------------------
#
# The basis vectors of a run on `A = M^T M` are `v_(j+1) = p_j(A) v_1` with the orthonormal
# polynomials of the recurrence. With the leading eigenvector x, `<v_(j+1), x> = p_j(lambda)
# <v_1, x>`, and these numbers are coordinates of a unit vector: `sum_j p_j(lambda)^2 <=
# 1 / <v_1, x>^2`. If `|<v_1, x>| >= delta`, no lambda above the largest Ritz value with a sum over
# `1 / delta^2` is an eigenvalue.


def least_overlap(n: int, failure: float) -> float:
    """The delta below which `|<v_1, x>|` lies with a probability of at most `failure`.

    For a start uniform on the sphere in n dimensions that is at most `2 delta G`, with
    `G = Gamma(n / 2) / (sqrt(pi) Gamma((n - 1) / 2))`.
    """
    density = math.exp(math.lgamma(n / 2) - math.lgamma((n - 1) / 2)) / math.sqrt(math.pi)
    return failure / (2 * density)


def excludes(run: LanczosRun, delta: float, value: float) -> bool:
    """Whether the sum of squares at a value above all Ritz values is over the limit."""
    earlier, here, beta_before = 0.0, delta, 0.0
    total = here**2
    for alpha, beta in zip(run.alphas, run.betas, strict=True):
        earlier, here = here, ((value - alpha) * here - beta_before * earlier) / beta
        total, beta_before = total + here**2, beta
        if total > 1:
            return True
    return False


def smallest_excluded(run: LanczosRun, delta: float) -> float:
    """The smallest value that is excluded with all above it."""
    theta = max(float(run.ritz()[0][0]), 0.0)
    if theta == 0 or excludes(run, delta, theta):
        return theta
    low, high = 0.0, 1e-3
    while not excludes(run, delta, theta * (1 + high)):
        high *= 4
    while high - low > 1e-6 * high + 1e-15:
        middle = (low + high) / 2
        excluded = excludes(run, delta, theta * (1 + middle))
        low, high = (low, middle) if excluded else (middle, high)
    return theta * (1 + high)


@final
@dataclass(frozen=True)
class Ceiling:
    """An upper end from elsewhere, computed when the iteration shows that it may be of use."""

    floor: float = math.inf  # it is not below this
    compute: Callable[[float], float] = lambda lower: math.inf  # from what is not above the norm

    @cached_property
    def value(self) -> float:
        return self.compute(self.floor)

    def is_within(self, limit: float) -> bool:
        return self.floor <= limit and self.value <= limit


@final
@dataclass(frozen=True)
class Search:
    """A Lanczos run that ends when the interval is narrow enough.

    It serves both upper ends: a `ceiling` that is known beforehand, whose lower end it finds,
    and its own probabilistic one. Where only the first counts, it may begin with Fourier modes.
    """

    view: View
    tol: float
    failure: float
    ceiling: Ceiling
    deterministic: bool = False
    fourier_modes: bool = False

    def run(self, generator: torch.Generator) -> tuple[Interval, Tensor]:
        """The interval, and an input that the layer lengthens by its lower end."""
        op = self.view.op
        side = _smaller_side(op)
        modes = filtered_row(side, generator) if self.fourier_modes else None
        start = side.input_tensor(random_rows(side, 1, generator) if modes is None else modes)
        fine = self.tol < 20 * rounding_margin(op.dtype)
        found, vector, ended = self._iterate(self.view.double if fine else op, start)
        if ended and found.width > self.tol and not fine and self.view.double is not op:
            # Rounding in the small precision hides what the start may have missed. From the same
            # start, so that both bounds fail together or not at all.
            again, other, _ = self._iterate(self.view.double, start)
            spent = found.num_matvecs + again.num_matvecs
            found, vector = (again, other) if again.upper < found.upper else (found, vector)
            found = replace(found, num_matvecs=spent)
        return found, vector

    def _iterate(self, op: LinearOperator, start: Tensor) -> tuple[Interval, Tensor, bool]:
        """Also says whether the basis came to an end."""
        balanced, factor = op.balanced()
        side = _smaller_side(balanced)
        n = side.shape[1]
        delta = least_overlap(n, self.failure)
        limit = min(n, SEARCH.steps, max(SEARCH.least_steps, SEARCH.basis_entries // n))
        run = LanczosRun(side.gram_rows, side.input_rows(sent(start, op.device, op.dtype)))
        while True:
            ended = not run.step()
            checked = run.steps >= 8 and run.steps % 3 == 2
            if ended or run.steps == limit or (checked and self._enough(run, delta, factor, op)):
                break
        leading = side.input_tensor(run.rows(run.ritz()[1][:, :1]))
        (lower, vector), spent = self._lower(leading), 2 * run.steps + 1
        # The deterministic end where it is narrow enough, else the lower of the two.
        upper = math.inf
        if not (self.deterministic or self.ceiling.is_within((1 + self.tol) * lower)):
            margin = 1 + rounding_margin(op.dtype)
            upper = math.sqrt(smallest_excluded(run, delta)) / factor * margin
        if self.deterministic or self.ceiling.is_within(upper):
            interval = Interval(lower, self.ceiling.value, "embedding", 0.0, spent)
        else:
            interval = Interval(lower, max(upper, lower), "probabilistic", self.failure, spent)
        return interval, vector, ended

    def _enough(self, run: LanczosRun, delta: float, factor: float, op: LinearOperator) -> bool:
        values, vectors = run.ritz()
        theta, residual = max(float(values[0]), 0.0), run.betas[-1] * abs(float(vectors[-1, 0]))
        target = 1 + max(self.tol - 4 * rounding_margin(op.dtype), 0.1 * self.tol)
        if self.ceiling.is_within(target * math.sqrt(theta) / factor):
            return True
        if self.deterministic:
            return residual <= 0.1 * self.tol * theta
        return excludes(run, delta, target**2 * theta)

    def _lower(self, vector: Tensor) -> tuple[float, Tensor]:
        """A Rayleigh quotient, in float64 where that can be had; the vector on the input's side."""
        balanced, factor = self.view.double.balanced()
        side = _smaller_side(balanced)
        rounded = sent(vector, side.device, side.dtype)
        image = side.matvec(rounded)
        ratio = float(on_host(image).norm() / on_host(rounded).norm())
        right = rounded if side is balanced else image
        return ratio / factor * (1 - rounding_margin(side.dtype)), right


def _smaller_side(op: LinearOperator) -> LinearOperator:
    return op.adjoint() if op.shape[0] < op.shape[1] else op
