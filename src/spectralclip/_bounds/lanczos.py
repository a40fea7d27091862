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
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._bounds.views import View
from spectralclip._linalg import sent
from spectralclip._operators import LinearOperator
from spectralclip._spectrum import descending_eigh, filtered_row, lengths, random_rows, small

STEPS = 300  # of the Lanczos recurrence, at most
BASIS_ENTRIES = 2**28  # of the basis that it keeps


class Ends(NamedTuple):
    """What a run has found; `certain` if the upper end is the one known beforehand.

    `vector` is an input that the operator lengthens by the lower end.
    """

    lower: float
    upper: float
    certain: bool
    applications: int
    vector: Tensor


@final
@dataclass(frozen=True)
class Ceiling:
    """An upper end from elsewhere, computed when the iteration shows that it may be of use.

    Attributes:
        floor: It is not below this.
        compute: Gives it, from a number that is not above the norm.
    """

    floor: float = math.inf
    compute: Callable[[float], float] = lambda lower: math.inf

    @cached_property
    def value(self) -> float:
        """The upper end itself."""
        return self.compute(self.floor)

    def is_within(self, limit: float) -> bool:
        """Whether it is at most this."""
        return self.floor <= limit and self.value <= limit


def relative_width(lower: float, upper: float) -> float:
    """How far the upper end is above the lower one, in units of the lower one."""
    if lower > 0:
        return upper / lower - 1
    return 0.0 if upper == 0 else math.inf


def slack(dtype: torch.dtype) -> float:
    """Relative margin for a number that a few applications in this precision have made."""
    return max(100 * torch.finfo(dtype).eps, 1e-9)


@final
class Recurrence:
    """The Lanczos coefficients of `A = M^T M`, and what they exclude.

    The basis vectors are `v_(j+1) = p_j(A) v_1` with the orthonormal polynomials of the
    recurrence. With the leading eigenvector x, `<v_(j+1), x> = p_j(lambda) <v_1, x>`, and these
    numbers are coordinates of a unit vector: `sum_j p_j(lambda)^2 <= 1 / <v_1, x>^2`. A start
    uniform on the sphere in n dimensions has `|<v_1, x>| < delta` with a probability of at
    most `2 delta G`, `G = Gamma(n / 2) / (sqrt(pi) Gamma((n - 1) / 2))`. Otherwise no lambda
    above the largest Ritz value with a sum over `1 / delta^2` is an eigenvalue.
    """

    def __init__(self, n: int, failure: float, eps: float) -> None:
        density = math.exp(math.lgamma(n / 2) - math.lgamma((n - 1) / 2)) / math.sqrt(math.pi)
        self.delta = failure / (2 * density)
        self._eps = eps
        self._alphas: list[float] = []
        self._betas: list[float] = []

    def add(self, alpha: float, beta: float) -> bool:
        """Take in a step; whether the basis is invariant up to rounding, so that it must end."""
        self._alphas.append(alpha)
        floor = 10 * self._eps * max(self._alphas)
        self._betas.append(max(beta, floor))  # less than rounding is not known
        return beta <= floor

    def largest(self) -> tuple[float, Tensor, float]:
        """The largest Ritz value, its coordinates in the basis, and its residual."""
        beside = torch.tensor(self._betas[:-1], dtype=torch.float64, device="cpu")
        diagonal = torch.tensor(self._alphas, dtype=torch.float64, device="cpu")
        matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        values, vectors = descending_eigh(matrix)
        residual = self._betas[-1] * abs(float(vectors[-1, 0]))
        return max(float(values[0]), 0.0), vectors[:, 0], residual

    def excludes(self, value: float) -> bool:
        """Whether the sum of squares at a value above all Ritz values is over the limit."""
        earlier, here, beta_before = 0.0, self.delta, 0.0
        total = here**2
        for alpha, beta in zip(self._alphas, self._betas, strict=True):
            earlier, here = here, ((value - alpha) * here - beta_before * earlier) / beta
            total, beta_before = total + here**2, beta
            if total > 1:
                return True
        return False

    def upper(self) -> float:
        """The smallest value that is excluded with all above it."""
        theta = self.largest()[0]
        if theta == 0 or self.excludes(theta):
            return theta
        width = 1e-3
        while not self.excludes(theta * (1 + width)):
            width *= 4
        low, high = 0.0, width
        while high - low > 1e-6 * high + 1e-15:
            middle = (low + high) / 2
            low, high = (low, middle) if self.excludes(theta * (1 + middle)) else (middle, high)
        return theta * (1 + high)


@final
@dataclass(frozen=True)
class Search:
    """A Lanczos run that ends when the interval is narrow enough.

    It serves both upper ends: a `ceiling` that is known beforehand, whose lower end it finds,
    and its own probabilistic one. Where only the first counts, it may begin with waves.
    """

    view: View
    rtol: float
    failure: float
    ceiling: Ceiling
    deterministic: bool = False
    waves: bool = False

    def run(self, generator: torch.Generator) -> Ends:
        """In the layer's own precision, unless the width asked for is finer than that."""
        op = self.view.op
        side = self._side(op)
        row = filtered_row(side, generator) if self.waves else random_rows(side, 1, generator)
        start = side.input_tensor(row)
        fine = self.rtol < 20 * slack(op.dtype)
        found, ended = self._iterate(self.view.double if fine else op, start)
        wide = relative_width(found.lower, found.upper) > self.rtol
        if ended and wide and not fine and self.view.double is not op:
            # Rounding in the small precision hides what the start may have missed. From the same
            # start, so that both bounds fail together or not at all.
            again, _ = self._iterate(self.view.double, start)
            applications = found.applications + again.applications
            best = again if again.upper < found.upper else found
            return best._replace(applications=applications)
        return found

    def _side(self, op: LinearOperator) -> LinearOperator:
        """The operator on its smaller side."""
        return op.adjoint() if op.shape[0] < op.shape[1] else op

    def _iterate(self, op: LinearOperator, start: Tensor) -> tuple[Ends, bool]:
        """Also says whether the basis came to an end."""
        balanced, factor = op.balanced()
        side = self._side(balanced)
        n, eps = side.shape[1], torch.finfo(op.dtype).eps
        recurrence = Recurrence(n, self.failure, eps)
        limit = min(n, STEPS, max(40, BASIS_ENTRIES // n))
        basis = torch.empty(limit, n, dtype=op.dtype, device=op.device)
        row, ended = side.input_rows(sent(start, op.device, op.dtype)), False
        for step in range(limit):
            beta = float(lengths(row))
            basis[step] = row[0] / beta
            alpha, row = continued(side.gram_rows(basis[step][None]), basis[: step + 1], beta)
            ended = recurrence.add(alpha, float(lengths(row)))
            if ended or (step >= 7 and step % 3 == 1 and self._enough(recurrence, factor, op)):
                break
        coordinates = recurrence.largest()[1].to(op.device, op.dtype)
        vector = side.input_tensor((coordinates @ basis[: step + 1])[None])
        return self._ends(recurrence, factor, op, *self._lower(vector), 2 * step + 3), ended

    def _enough(self, recurrence: Recurrence, factor: float, op: LinearOperator) -> bool:
        theta, _, residual = recurrence.largest()
        target = 1 + max(self.rtol - 4 * slack(op.dtype), 0.1 * self.rtol)
        if self.ceiling.is_within(target * math.sqrt(theta) / factor):
            return True
        if self.deterministic:
            return residual <= 0.1 * self.rtol * theta
        return recurrence.excludes(target**2 * theta)

    def _lower(self, vector: Tensor) -> tuple[float, Tensor]:
        """A Rayleigh quotient, in float64 where that can be had; the vector on the input's side."""
        balanced, factor = self.view.double.balanced()
        side = self._side(balanced)
        rounded = sent(vector, side.device, side.dtype)
        image = side.matvec(rounded)
        ratio = float(small(image).norm() / small(rounded).norm())
        right = rounded if side is balanced else image
        return ratio / factor * (1 - slack(side.dtype)), right

    def _ends(
        self,
        recurrence: Recurrence,
        factor: float,
        op: LinearOperator,
        lower: float,
        vector: Tensor,
        applications: int,
    ) -> Ends:
        """The deterministic end where it is narrow enough, else the lower of the two."""
        if self.deterministic or self.ceiling.is_within((1 + self.rtol) * lower):
            return Ends(lower, self.ceiling.value, True, applications, vector)
        upper = math.sqrt(recurrence.upper()) / factor * (1 + slack(op.dtype))
        if self.ceiling.is_within(upper):
            return Ends(lower, self.ceiling.value, True, applications, vector)
        return Ends(lower, max(upper, lower), False, applications, vector)


def continued(image: Tensor, basis: Tensor, beta: float) -> tuple[float, Tensor]:
    """What the image of the last basis vector adds to the basis, and its coordinate along it.

    The recurrence first, then all of the basis once more: what that takes away is rounding, so
    that the basis stays orthonormal to working precision.
    """
    alpha = float(torch.sum(image * basis[-1]))
    image = image - alpha * basis[-1]
    if basis.shape[0] > 1:
        image -= beta * basis[-2]
    return alpha, image - (image @ basis.T) @ basis
