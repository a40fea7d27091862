"""Largest eigenvalues of many small Hermitian matrices, and a bound on that of a large one."""

from __future__ import annotations

import torch
from torch import Tensor

from spectralclip._linalg.precision import decomposable, on_host

SLICE = 512  # rows of a large matrix that are widened at once


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
    vectors = grams @ start.to(grams.dtype)
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
        return torch.zeros(grams.shape[0], dtype=torch.bool, device="cpu")
    if grams.shape[-1] == 1:
        return grams[:, 0, 0].real <= limit
    identity = torch.eye(grams.shape[-1], dtype=grams.dtype, device="cpu")
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
