"""Rough leading triplets at a fixed price, for loops in which the operator keeps moving."""

from __future__ import annotations

import torch
from torch import Tensor

from spectralclip._linalg import (
    LanczosRun,
    descending_eigh,
    lengths,
    orthonormal_rows,
    row_products,
)
from spectralclip._operators import LinearOperator
from spectralclip._spectrum.start_vectors import random_rows
from spectralclip._spectrum.triplets import Triplets


def fresh_ritz(op: LinearOperator, steps: int, k: int, generator: torch.Generator) -> Triplets:
    """The k leading Ritz triplets of a Lanczos run from a new random vector."""
    if op.shape[0] < op.shape[1]:
        return fresh_ritz(op.adjoint(), steps, k, generator).swapped()
    run = LanczosRun(op.gram_rows, random_rows(op, 1, generator))
    # An invariant subspace holds, with a random start, all that there is.
    while run.step() and run.steps < min(steps, op.shape[1]):
        pass
    return _rayleigh_ritz(op, run.rows(run.ritz()[1][:, :k]), 2 * run.steps)


def warmed_ritz(op: LinearOperator, found: Triplets, generator: torch.Generator) -> Triplets:
    """As many triplets after one block Krylov step from earlier ones, the last replaced by noise.

    The noise is what finds a value that has come up from below since.
    """
    if op.shape[0] < op.shape[1]:
        return warmed_ritz(op.adjoint(), found.swapped(), generator).swapped()
    k = found.V.shape[0]
    rows = torch.cat([found.V[: max(1, k - 1)], random_rows(op, 1, generator)])[: op.shape[1]]
    rows = orthonormal_rows(rows, rows[:0])
    basis = torch.cat([rows, orthonormal_rows(op.gram_rows(rows), rows)])
    return _rayleigh_ritz(op, basis, 2 * rows.shape[0]).first(k)


def _rayleigh_ritz(op: LinearOperator, basis: Tensor, num_matvecs: int) -> Triplets:
    """The Ritz triplets on the span of orthonormal rows."""
    images = op.forward_rows(basis)
    squares, mix = descending_eigh(row_products(images, images))
    turn = mix.T.to(op.device, op.dtype)
    left = turn @ images
    left = left / lengths(left)[:, None].clamp_min(torch.finfo(op.dtype).tiny)
    values = squares.clamp_min(0).sqrt()
    return Triplets(values, left, turn @ basis, num_matvecs + basis.shape[0])
