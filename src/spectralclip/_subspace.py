"""A growing subspace: Rayleigh-Ritz, orthogonalization, and when a Ritz pair is accurate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._operator import LinearOperator
from spectralclip._precision import decomposable, on_host


def small(matrix: Tensor) -> Tensor:
    """A small matrix in float64 on the CPU, where dense algebra is exact enough and cheap."""
    return on_host(matrix)


def lengths(rows: Tensor) -> Tensor:
    """The norm of each row.

    Torch's own, in float32 on a CPU, adds up squares one after the other: it is 1e-5 too small for
    a million entries, and 6e-4 for sixteen million. A sum is taken pairwise.
    """
    return rows.square().sum(dim=1).sqrt()


def row_products(rows: Tensor, others: Tensor) -> Tensor:
    """`rows @ others.T` as a small matrix; long rows in parts, as products sum like norms."""
    parts = zip(rows.split(LONG, 1), others.split(LONG, 1), strict=True)
    total: Tensor = torch.stack([small(one @ other.T) for one, other in parts]).sum(0)
    return total


def tall_qr(columns: Tensor) -> tuple[Tensor, Tensor]:
    """The reduced QR factors, on the CPU where the device has no QR."""
    Q, R = torch.linalg.qr(decomposable(columns))
    return Q.to(columns.device), R.to(columns.device)


LONG = 2**18  # entries of a row that are summed in the operator's own precision

# Residuals of this many eps times the largest value are rounding: layers of up to 4608 products a
# sum were seen to have eight.
ROUNDING = 20

# A pair is judged again when it is finished, with other rounding.
SAME = 1.05

# Up to this, lost orthogonality is made good by the iteration that follows.
_LOST = 1e-4


def rows_lq(rows: Tensor, lost: float = _LOST) -> tuple[Tensor, Tensor]:
    """The lower triangle L and the orthonormal rows Q with `rows = L Q`.

    By the Cholesky factor of `rows rows^T`, which takes a fraction of the time of Householder's
    reflections but loses eps times the squared condition of the rows; by these where that is more
    than `lost`.
    """
    L, failed = torch.linalg.cholesky_ex(row_products(rows, rows))
    if not failed:
        inverse = torch.linalg.solve_triangular(
            L, torch.eye(len(L), dtype=L.dtype, device="cpu"), upper=False
        )
        condition = float(L.norm() * inverse.norm()) / len(L)
        if condition**2 * torch.finfo(rows.dtype).eps <= lost:
            return L.to(rows), inverse.to(rows) @ rows
    Q, R = tall_qr(rows.T)
    return R.T, Q.T


@final
@dataclass(frozen=True)
class Accuracy:
    """The stopping rule for Ritz pairs (theta, v) of `A = M^T M` with residuals r.

    Some eigenvalue lies within r of theta, so the relative error of sqrt(theta) is at most
    `linear = r / (2 theta)`; once the pair is separated from the rest of the spectrum by a gap
    it is about `r^2 / gap / (2 theta)`, which is far smaller (Kato and Temple). The gap is
    read off the Ritz values and may be too large while the rest is still hidden; so the
    second estimate counts only when `linear` is below `caution * tol^(3/4)`, half-way between
    what the two would ask for. A wide block of random vectors hides less, and may stop at
    `0.17 sqrt(tol)` and at twice the estimate. The constants are measured on random
    convolutions; the page on solvers in the documentation says how often they fail.
    """

    tol: float
    eps: float
    width: int = 1
    caution: float = 0.39

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
        ripe = (linear <= SAME * self._limit) & (estimate <= SAME * self.tol)
        return ripe | (self.settled(residual, largest) & (estimate <= self.tol / 10))

    def settled(self, residual: Tensor, largest: float) -> Tensor:
        """Where a residual of `M` is rounding: no iteration gets below."""
        return residual <= ROUNDING * self.eps * largest

    @property
    def _wide(self) -> float:
        return min(max(self.width / 12 - 1, 0.0), 1.0)

    @property
    def _limit(self) -> float:
        return max(self.caution * math.pow(self.tol, 0.75), self._wide * 0.17 * math.sqrt(self.tol))

    def _linear_and_best(
        self, theta: Tensor, residual: Tensor, separated_from: Tensor
    ) -> tuple[Tensor, Tensor]:
        tiny = torch.finfo(theta.dtype).tiny
        scale = 2 * theta.clamp_min(tiny)
        linear = residual / scale
        gap = (theta - separated_from).clamp_min(tiny)
        return linear, torch.minimum(linear, residual**2 / gap / scale) / (1 + self._wide)


def descending_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending, and eigenvectors of a small symmetric matrix."""
    if not bool(torch.isfinite(matrix).all()):
        raise OverflowError(
            "The layer's singular values overflow when squared: rescale its weights, or convert "
            "it to float64."
        )
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)


@final
class Subspace:
    """An orthonormal basis V with its images `A V` and the projection `V^T A V`."""

    def __init__(self, op: LinearOperator, room: int, applications: int) -> None:
        self._op = op
        self.applications = applications
        self.room = room
        self._vectors = torch.empty(room, op.shape[1], dtype=op.dtype, device=op.device)
        self._images = torch.empty_like(self._vectors)
        self._projection = torch.zeros(room, room, dtype=torch.float64, device="cpu")
        self.size = 0

    @property
    def vectors(self) -> Tensor:
        """The basis, one vector a row."""
        return self._vectors[: self.size]

    def expand(self, rows: Tensor) -> None:
        """Add orthonormal rows to the basis."""
        old, self.size = self.size, self.size + rows.shape[0]
        self._vectors[old : self.size] = rows
        self._images[old : self.size] = self._op.gram_rows(rows)
        self.applications += 2 * rows.shape[0]
        block = row_products(self._images[old : self.size], self.vectors)
        self._projection[old : self.size, : self.size] = block
        self._projection[: self.size, old : self.size] = block.T
        square = self._projection[old : self.size, old : self.size]
        square.copy_((square + square.T) / 2)
        self._theta, self._coefficients = descending_eigh(
            self._projection[: self.size, : self.size]
        )

    def beside(self, width: int) -> float | None:
        """The first singular value behind a block of this width, where the basis shows one."""
        return float(self._theta[width].clamp_min(0)) ** 0.5 if width < self.size else None

    def ritz(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Some Ritz vectors and their images."""
        mix = self._coefficients[:, indices].T.to(self._vectors.device, self._vectors.dtype)
        return mix @ self.vectors, mix @ self._images[: self.size]

    def residuals(self, indices: list[int]) -> Tensor:
        """Residual rows of some Ritz vectors."""
        vectors, images = self.ritz(indices)
        theta = self._theta[indices, None].to(vectors.device, vectors.dtype)
        return images.addcmul_(theta, vectors, value=-1)

    def unconverged(
        self, indices: list[int], width: int, accuracy: Accuracy
    ) -> tuple[Tensor, list[int]]:
        """Those of some Ritz vectors that are not accurate yet: their residuals, and which."""
        indices = [index for index in indices if index < self.size]
        rows = self.residuals(indices)
        norms, theta = small(lengths(rows)), self._theta[indices]
        floor = ROUNDING * accuracy.eps * self._theta[0]
        if width < self.size:
            # A block of this width separates its vectors from the value that follows it.
            error = accuracy.estimates(theta, norms, self._theta[width])
        else:
            error = torch.full_like(norms, torch.inf)
        error[norms <= floor] = 0.0  # no iteration gets below rounding in applying A
        open_ = (error > accuracy.tol).tolist()
        chosen = [position for position, is_open in enumerate(open_) if is_open]
        return rows[chosen], [indices[position] for position in chosen]

    def restart(self, keep: int) -> None:
        """Keep the leading Ritz vectors alone."""
        vectors, images = self.ritz(list(range(keep)))
        self._vectors[:keep], self._images[:keep] = vectors, images
        self._projection.zero_()
        self._projection[:keep, :keep] = torch.diag(self._theta[:keep])
        self.size = keep


def orthonormal_rows(rows: Tensor, against: Tensor) -> Tensor:
    """An orthonormal basis of the rows' span outside that of the orthonormal `against`.

    Directions that are numerically inside are dropped. Where projecting or orthogonalizing has
    cancelled much, rounding is left over, and it is done once more.
    """
    eps = torch.finfo(rows.dtype).eps
    for attempt in range(2):
        norms = lengths(rows)
        if bool((norms == 0).any()):
            rows, norms = rows[norms > 0], norms[norms > 0]
        rows = rows / norms[:, None]
        if against.shape[0]:
            rows.addmm_(rows @ against.T, against, alpha=-1)
        # Rows were of length one: what is left of a direction inside the span is rounding.
        values, vectors = torch.linalg.eigh(row_products(rows, rows))
        kept = values > (100 * eps if attempt == 0 else 0.25)
        whiten = (vectors[:, kept] / values[kept].sqrt()).T
        rows = whiten.to(rows.device, rows.dtype) @ rows
        if bool((values > 0.1).all()):
            break
    return rows
