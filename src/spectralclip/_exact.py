"""The exact solver: direct decomposition, no iteration on the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._blocks import block_form
from spectralclip._operator import LinearOperator
from spectralclip._precision import on_host
from spectralclip._solvers import Solver, Triplets, finish
from spectralclip._subspace import orthonormal_rows

# Entries of a dense matrix that is still formed: 1 GiB in float64.
DENSE_LIMIT = 2**27


def require_dense(op: LinearOperator, remedy: str) -> None:
    """Raise unless the operator's matrix is small enough to be formed."""
    m, n = op.shape
    if m * n > DENSE_LIMIT:
        raise ValueError(
            f"{op.name} is a {m} x {n} matrix, {m * n * 8 / 2**30:.1f} GiB in float64, and has no "
            f"faster exact form: its whole spectrum is out of reach. {remedy}"
        )


@final
@dataclass(frozen=True)
class Exact(Solver):
    """Decomposes the layer's small blocks where it falls apart into some, else its matrix.

    `tol` and `v0` do not matter to it. Forming the matrix takes `min(m, n)` applications and
    `m n` numbers.
    """

    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Triplets:
        """Decompose directly."""
        form = block_form(op)
        if form is not None and form.value_count >= k:
            rows = form.leading_rows(k).to(op.device, op.dtype)
            found = finish(op, orthonormal_rows(rows, rows[:0]), True, 0)
            if found.S.shape[0] >= k:
                return found.first(k)
        require_dense(op, "Use solver=Lanczos().")
        return self._dense(op, k)

    @staticmethod
    def _dense(op: LinearOperator, k: int) -> Triplets:
        m, n = op.shape
        matrix = on_host(op.to_dense())
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
        U, S, V = U.T[:k], S[:k], Vh[:k]
        residuals = (U @ matrix - S[:, None] * V).norm(dim=1)
        S, U, V, residuals = (part.to(op.device, op.dtype) for part in (S, U, V, residuals))
        left = op.output_rows(U.reshape(k, *op.out_shape))
        right = op.input_rows(V.reshape(k, *op.in_shape))
        return Triplets(S, left, right, residuals, True, min(m, n))


def dense_values(op: LinearOperator) -> Tensor:
    """All singular values, descending, from the dense matrix."""
    matrix = on_host(op.to_dense())
    values: Tensor = torch.linalg.svdvals(matrix)
    return values.to(op.device, op.dtype)
