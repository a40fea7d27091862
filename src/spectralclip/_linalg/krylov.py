"""The Lanczos recurrence, and how rows are made orthonormal.

Vectors are flat rows in the precision of the operator; what is small is float64 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg.precision import decomposable, on_host

BLOCK = 16  # basis vectors that are allocated, and orthogonalized against, at once
LONG = 2**18  # entries of a row that are summed in the operator's own precision


@final
class LanczosRun:
    """The Lanczos recurrence of a symmetric map A from a start row: `A Q = Q T + e rest^T`.

    Q has orthonormal rows and T is tridiagonal. With `reorthogonalize` Q stays orthonormal to
    working precision. Without it rounding makes copies of converged eigenvalues, which do no harm
    to the largest one. The rest is what the last image adds to the basis.
    """

    def __init__(
        self, apply: Callable[[Tensor], Tensor], start: Tensor, *, reorthogonalize: bool = True
    ) -> None:
        self._apply, self._reorthogonalize = apply, reorthogonalize
        self._eps = torch.finfo(start.dtype).eps
        self._blocks: list[Tensor] = []
        self.rest, self._length = start, float(lengths(start))
        self.alphas: list[float] = []  # the diagonal of T
        # The entries beside it, and last the length of the rest; none is below rounding.
        self.betas: list[float] = []

    @property
    def steps(self) -> int:
        """How many vectors the basis has; each took one product with A."""
        return len(self.alphas)

    def step(self) -> bool:
        """Add a vector to the basis; whether another can follow, or A leaves the span as it is."""
        place = self.steps % BLOCK
        previous = self._blocks[-1][place - 1] if self._blocks else None
        if place == 0:
            self._blocks.append(self.rest.new_empty(BLOCK, self.rest.shape[1]))
        row = self._blocks[-1][place]
        torch.div(self.rest[0], self._length, out=row)
        image = self._apply(row[None])
        self.alphas.append(float(torch.sum(image * row)))
        rest = torch.sub(image, row, alpha=self.alphas[-1])  # the image may be the row itself
        if previous is not None:
            rest.sub_(previous, alpha=self._length)
        if self._reorthogonalize:
            for block in self._filled():
                rest.addmm_(rest @ block.T, block, alpha=-1)
        self.rest, self._length = rest, float(lengths(rest))
        floor = 10 * self._eps * max(self.alphas)
        self.betas.append(max(self._length, floor))
        return self._length > floor

    def ritz(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of T, descending, and its eigenvectors as columns."""
        beside = torch.tensor(self.betas[:-1], dtype=torch.float64, device="cpu")
        diagonal = torch.tensor(self.alphas, dtype=torch.float64, device="cpu")
        return descending_eigh(diagonal.diag() + beside.diag(1) + beside.diag(-1))

    def rows(self, coordinates: Tensor) -> Tensor:
        """The vectors with these columns of coordinates in the basis."""
        mix = coordinates.T.to(self.rest)
        total = self.rest.new_zeros(len(mix), self.rest.shape[1])
        for part, block in zip(mix.split(BLOCK, 1), self._filled(), strict=True):
            total.addmm_(part, block)
        return total

    def _filled(self) -> list[Tensor]:
        used = self.steps - BLOCK * (len(self._blocks) - 1)
        return [*self._blocks[:-1], self._blocks[-1][:used]]


def descending_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending, and eigenvectors of a small symmetric matrix."""
    if not bool(torch.isfinite(matrix).all()):
        raise OverflowError(
            "The layer's singular values overflow when squared: rescale its weights, or convert "
            "it to float64."
        )
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)


def lengths(rows: Tensor) -> Tensor:
    """The norm of each row.

    Torch's own, in float32 on a CPU, adds up squares one after the other: it is 1e-5 too small for
    a million entries, and 6e-4 for sixteen million. A sum is taken pairwise.
    """
    return rows.square().sum(dim=1).sqrt()


def row_products(rows: Tensor, others: Tensor) -> Tensor:
    """`rows @ others.T` as a small matrix; long rows in parts, as products sum like norms."""
    parts = zip(rows.split(LONG, 1), others.split(LONG, 1), strict=True)
    total: Tensor = torch.stack([on_host(one @ other.T) for one, other in parts]).sum(0)
    return total


def tall_qr(columns: Tensor) -> tuple[Tensor, Tensor]:
    """The reduced QR factors, on the CPU where the device has no QR."""
    Q, R = torch.linalg.qr(decomposable(columns))
    return Q.to(columns.device), R.to(columns.device)


def rows_lq(rows: Tensor, lost: float = 1e-4) -> tuple[Tensor, Tensor]:
    """The lower triangle L and the orthonormal rows Q with `rows = L Q`.

    By the Cholesky factor of `rows rows^T`, which takes a fraction of the time of Householder's
    reflections but loses eps times the squared condition of the rows; by these where that is more
    than `lost`. Up to 1e-4, lost orthogonality is made good by the iteration that follows.
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
