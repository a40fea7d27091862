"""Singular values of small matrices: the largest, those above a bound, and clipping them."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg.precision import decomposable, on_host, sent, wide

SLICE = 512  # rows of a large matrix that are widened at once


def largest_singular_value(matrices: Tensor, known: float = 0.0) -> float:
    """The largest singular value of a matrix or a batch, or `known` if that is larger.

    From the Gram matrices of the smaller side, in float64: right to about 1e-9. NaN if an entry is
    not finite.
    """
    rows, columns = matrices.shape[-2:]
    scale = float(matrices.abs().max()) if matrices.numel() else 0.0
    if not math.isfinite(scale):
        return math.nan
    if known >= scale * math.sqrt(rows * columns):
        return known
    blocks = wide(matrices).reshape(-1, rows, columns) / scale  # keeps squares in range
    grams = blocks @ blocks.mH if rows <= columns else blocks.mH @ blocks
    return scale * math.sqrt(max(0.0, largest_eigenvalue(grams, (known / scale) ** 2)))


def largest_eigenvalue(grams: Tensor, known: float) -> float:
    """The largest eigenvalue in a batch, or `known` if that is larger.

    Few are decomposed: where `(1 + 1e-9) known I - G` has a Cholesky factor, which costs a
    tenth, G is below what is known already. A few power steps say which to begin with.
    """
    side = grams.shape[-1]
    if side == 1:
        return max(known, float(grams.real.max()))
    if known > 0:
        grams = grams[~below(grams, known * (1 + 1e-9))]
    seeded = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(side, 1, generator=seeded, dtype=torch.float64, device="cpu")
    vectors = grams @ start.to(grams)
    for _ in range(6):
        norms = vectors.norm(dim=1, keepdim=True)
        vectors = grams @ (vectors / norms.clamp_min(1e-300))
    grams = grams[vectors.norm(dim=1)[:, 0].argsort(descending=True)]
    while grams.shape[0]:
        known = max(known, float(torch.linalg.eigvalsh(grams[:2])[:, -1].max()))
        grams = grams[2:]
        if grams.shape[0]:
            grams = grams[~below(grams, known * (1 + 1e-9))]
    return known


def below(grams: Tensor, limit: float) -> Tensor:
    """Which matrices of a batch have no eigenvalue above a limit, by Cholesky factors."""
    if limit <= 0:
        return torch.zeros(grams.shape[0], dtype=torch.bool, device=grams.device)
    if grams.shape[-1] == 1:
        return grams[:, 0, 0].real <= limit
    identity = torch.eye(grams.shape[-1], dtype=grams.dtype, device=grams.device)
    proved: Tensor = torch.linalg.cholesky_ex(limit * identity - grams).info == 0
    return proved


def norm_is_below(matrix: Tensor, limit: float) -> bool:
    """Whether no singular value of a large matrix is above a limit, by one Cholesky factor.

    Of the Gram matrix on the smaller side only the lower half is computed, in slices: together
    that takes less than half of what its eigenvalues take, and a third of the memory.
    """
    flat = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    side = flat.shape[0]
    scale = float(flat.abs().max()) or 1.0
    test = torch.zeros(side, side, dtype=torch.float64, device="cpu")
    for start in range(0, side, SLICE):
        rows = on_host(flat[start : start + SLICE]) / -scale
        for other in range(0, start + SLICE, SLICE):
            columns = on_host(flat[other : other + SLICE]) / scale
            test[start : start + SLICE, other : other + SLICE] = rows @ columns.T
    test.diagonal().add_((limit / scale) ** 2)
    return int(torch.linalg.cholesky_ex(test).info) == 0


def sum_of_squares(x: Tensor) -> float:
    """The squared Frobenius norm of a tensor, summed in float64."""
    return float(torch.linalg.vector_norm(decomposable(x.detach()), dtype=torch.float64)) ** 2


@final
class GramSVD:
    """Matrices `(..., rows, columns)` with the singular vectors of their smaller side.

    These come from the Gram matrix, which costs a fraction of an SVD. Squaring loses the small
    values; those play no part in clipping. Values are ascending; vectors are columns, right ones,
    or left ones of wide matrices.
    """

    def __init__(self, matrices: Tensor, *, exact: bool = False) -> None:
        self._matrices, self._is_exact = matrices, exact
        self.is_wide = matrices.shape[-2] < matrices.shape[-1]
        gram = smaller_gram(wide(matrices) if exact else matrices)
        squares, vectors = torch.linalg.eigh(decomposable(gram))
        self.values, self.vectors = squares.clamp_min(0).sqrt().to(gram.device), vectors.to(gram)

    @property
    def norm(self) -> float:
        return float(self.values.max())

    def clipped(self, max_norm: float) -> Tensor:
        """The nearest matrices of norm at most `max_norm`; what lies below is not touched."""
        matrices = self._matrices
        # Where nearly everything is taken away, what is left needs the longer arithmetic.
        if self._is_exact and self.norm > 100 * max_norm:
            matrices = wide(matrices)
        left = matrices - self.excess(max_norm, matrices)
        return left.to(self._matrices.device, self._matrices.dtype)

    def excess(self, max_norm: float, matrices: Tensor | None = None) -> Tensor:
        """The sum of `(s - max_norm) u v^H` over the values above; of other matrices if given."""
        matrices = self._matrices if matrices is None else matrices
        share = (1 - max_norm / self.values).clamp_min(0)  # of a value that is zero: -inf
        first = self.values.shape[-1] - int((share > 0).sum(-1).max())
        vectors = sent(self.vectors[..., first:], matrices.device, matrices.dtype)
        scaled = vectors * sent(share[..., None, first:], matrices.device, matrices.real.dtype)
        if self.is_wide:
            return scaled @ (vectors.mH @ matrices)
        return (matrices @ scaled) @ vectors.mH


def smaller_gram(matrices: Tensor) -> Tensor:
    if matrices.shape[-2] < matrices.shape[-1]:
        return matrices @ matrices.mH
    return matrices.mH @ matrices
