"""The exact solver: direct decomposition, no iteration on the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import on_host, orthonormal_rows
from spectralclip._operators import LinearOperator
from spectralclip._spectrum.solvers import Solver
from spectralclip._spectrum.stopping import ROUNDING, StoppingRule
from spectralclip._spectrum.triplets import (
    Spectrum,
    Triplets,
    Verdict,
    assembled,
    finish,
    margin,
    rounding_errors,
)

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


_ADVICE = (
    "The smallest values are lost in rounding (see errors). Ask for fewer, loosen tol, or convert "
    "the layer to float64."
)


@final
@dataclass(frozen=True)
class Exact(Solver):
    """Decomposes the layer's small blocks where it is block diagonal, else its matrix.

    `tol` and `v0` do not matter to it. Forming the matrix takes `min(m, n)` products and
    `m n` numbers.
    """

    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Spectrum:
        """Decompose directly."""
        eps = torch.finfo(op.dtype).eps
        rule = StoppingRule(max(tol, ROUNDING * eps), eps)
        found = self._from_blocks(op, k, rule)
        m, n = op.shape
        if found is None or (not found.converged and m * n <= DENSE_LIMIT):
            # Vectors in float32 leave residuals that hide small values; the matrix does not.
            require_dense(op, "Use solver=Lanczos().")
            found = self._dense(op, k, rule, 0 if found is None else found.num_matvecs)
        return found.spectrum(op, _ADVICE)

    @staticmethod
    def _from_blocks(op: LinearOperator, k: int, rule: StoppingRule) -> Triplets | None:
        form = op.block_form()
        if form is None or form.value_count < k:
            return None
        rows = form.leading_rows(k).to(op.device, op.dtype)
        if op.maps[0].is_transposed:  # its right vectors are images of those of the blocks
            rows = op.maps[0].adjoint(rows)
        found = finish(op, orthonormal_rows(rows, rows[:0]), rule, 0)
        return found.first(k) if found.S.shape[0] >= k else None

    @staticmethod
    def _dense(op: LinearOperator, k: int, rule: StoppingRule, spent: int) -> Triplets:
        m, n = op.shape
        matrix = on_host(op.to_dense())
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
        U, S, V = U.T[:k], S[:k], Vh[:k]
        left = op.output_rows(U.reshape(k, *op.out_shape).to(op.device, op.dtype))
        right = op.input_rows(V.reshape(k, *op.in_shape).to(op.device, op.dtype))
        residuals = (U @ matrix - S[:, None] * V).norm(dim=1)
        eps = rule.eps
        errors = 2 * margin(op) * S + ROUNDING * torch.finfo(S.dtype).eps * S[0]
        if len(op.maps) > 1 or not op.maps[0].is_explicit:
            # The entries are rounded sums of products, and so is each further product.
            overlaps = on_host(op.adjoint_rows(left) @ right.T) - torch.diag(S)
            errors, spent = rounding_errors(op, S, overlaps), spent + k
        zero = (errors >= S) & (errors <= ROUNDING * eps * S[0])
        accurate = (errors <= rule.tol * S) | zero
        verdict = Verdict(residuals, errors, accurate)
        return assembled(op, S, left, right, verdict, spent + min(m, n))
