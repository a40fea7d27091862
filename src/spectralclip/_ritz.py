"""Rough leading triplets at a fixed price, for loops in which the operator keeps moving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._operator import LinearOperator
from spectralclip._starts import random_rows
from spectralclip._subspace import descending_eigh, lengths, orthonormal_rows, row_products


@final
@dataclass(frozen=True)
class Ritz:
    """Approximate triplets on flat rows: unit vectors u, v with `s = <u, M v>`, descending."""

    S: Tensor  # float64, on the CPU
    U: Tensor
    V: Tensor
    applications: int

    def first(self, k: int) -> Ritz:
        """The k leading ones."""
        return Ritz(self.S[:k], self.U[:k], self.V[:k], self.applications)

    def swapped(self) -> Ritz:
        """The triplets of the transposed operator."""
        return Ritz(self.S, self.V, self.U, self.applications)


def fresh_ritz(op: LinearOperator, steps: int, k: int, generator: torch.Generator) -> Ritz:
    """The k leading Ritz triplets of a Lanczos run from a new random vector."""
    if op.shape[0] < op.shape[1]:
        return fresh_ritz(op.adjoint(), steps, k, generator).swapped()
    n = op.shape[1]
    steps = min(steps, n)
    basis = torch.empty(steps, n, dtype=op.dtype, device=op.device)
    projection = torch.zeros(steps, steps, dtype=torch.float64, device="cpu")
    row = random_rows(op, 1, generator)
    row, size, applications = row / lengths(row), 0, 0
    while size < steps:
        basis[size] = row[0]
        size += 1
        image = op.gram_rows(row)
        applications += 2
        coefficients = row_products(image, basis[:size])
        scale = float(lengths(image))
        image.addmm_(coefficients.to(image), basis[:size], alpha=-1)
        image.addmm_(image @ basis[:size].T, basis[:size], alpha=-1)
        projection[size - 1, :size] = coefficients[0]
        projection[:size, size - 1] = coefficients[0]
        norm = float(lengths(image))
        if norm <= 100 * torch.finfo(op.dtype).eps * scale:
            break  # an invariant subspace: with a random start, all that there is
        row = image / norm
    _, mix = descending_eigh(projection[:size, :size])
    vectors = mix[:, : min(k, size)].T.to(op.device, op.dtype) @ basis[:size]
    return _rayleigh_ritz(op, vectors, applications)


def warmed_ritz(op: LinearOperator, ritz: Ritz, generator: torch.Generator) -> Ritz:
    """As many triplets after one block Krylov step from earlier ones, the last replaced by noise.

    The noise is what finds a value that has come up from below since.
    """
    if op.shape[0] < op.shape[1]:
        return warmed_ritz(op.adjoint(), ritz.swapped(), generator).swapped()
    k = ritz.V.shape[0]
    probe = random_rows(op, 1, generator)
    rows = torch.cat([ritz.V[: max(1, k - 1)], probe])[: op.shape[1]]
    rows = orthonormal_rows(rows, rows[:0])
    images = op.gram_rows(rows)
    more = orthonormal_rows(images, rows)
    basis = torch.cat([rows, more])
    return _rayleigh_ritz(op, basis, 2 * rows.shape[0]).first(k)


def _rayleigh_ritz(op: LinearOperator, basis: Tensor, applications: int) -> Ritz:
    images = op.forward_rows(basis)
    squares, mix = descending_eigh(row_products(images, images))
    values = squares.clamp_min(0).sqrt()
    mix = mix.T.to(op.device, op.dtype)
    left = mix @ images
    left = left / lengths(left)[:, None].clamp_min(torch.finfo(op.dtype).tiny)
    return Ritz(values, left, mix @ basis, applications + basis.shape[0])
