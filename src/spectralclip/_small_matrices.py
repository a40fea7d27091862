"""The largest eigenvalue of many small Hermitian matrices, or of a single large one."""

from __future__ import annotations

import torch
from torch import Tensor


def largest_eigenvalue(grams: Tensor, known: float) -> float:
    """The largest eigenvalue in a batch, or `known` if that is larger.

    Few are decomposed: where `(1 + 1e-9) known I - G` has a Cholesky factor, which costs a
    tenth, G is below what is known already. A few power steps say which to begin with.
    """
    side = grams.shape[-1]
    if side == 1:
        return max(known, float(grams.real.max()))
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
