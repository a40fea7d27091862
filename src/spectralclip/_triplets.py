"""Singular triplets on flat rows, how they are finished, and what each of them is worth.

The algebra here is in float64 whatever the operator computes in, since sums over long rows in
float32 lose more than applying the layer does: what is left is the rounding of the applications.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spectralclip._operator import LinearOperator
from spectralclip._precision import sent, wide
from spectralclip._subspace import ROUNDING, Accuracy, rows_lq, small

# Values are rounded down by this many eps, so that they are lower bounds. Applying a layer moved
# a value by up to 0.5 eps (dense and convolutional layers of up to 4608 products a sum).
ROUNDED_DOWN = 4


@final
@dataclass(frozen=True)
class Triplets:
    """Leading singular triplets on flat rows."""

    S: Tensor
    U: Tensor
    V: Tensor
    residuals: Tensor  # sqrt(||M v - s u||^2 + ||M^T u - s v||^2)
    errors: Tensor  # how far each value may be off
    accurate: Tensor  # for each value, whether that is within the tolerance
    applications: int
    advice: str = ""  # what to do where not all values are accurate

    @property
    def converged(self) -> bool:
        """Whether all values are accurate."""
        return bool(self.accurate.all())

    def first(self, k: int) -> Triplets:
        """The k leading ones."""
        return replace(
            self,
            S=self.S[:k],
            U=self.U[:k],
            V=self.V[:k],
            residuals=self.residuals[:k],
            errors=self.errors[:k],
            accurate=self.accurate[:k],
        )

    def scaled(self, factor: float) -> Triplets:
        """The triplets of a multiple of the operator."""
        S, residuals, errors = (factor * part for part in (self.S, self.residuals, self.errors))
        return replace(self, S=S, residuals=residuals, errors=errors)

    def swapped(self) -> Triplets:
        """The triplets of the transposed operator."""
        return replace(self, U=self.V, V=self.U)


def margin(op: LinearOperator) -> float:
    """The relative amount by which values are rounded down."""
    # In float64 the sums over long rows are no more exact than the applications.
    sums = max(op.shape) ** 0.5 if op.dtype == torch.float64 else 0.0
    return (ROUNDED_DOWN + sums) * torch.finfo(op.dtype).eps


def rounded_down(S: Tensor, op: LinearOperator) -> Tensor:
    """Values in float64 as lower bounds in the operator's precision."""
    return sent(S * (1 - margin(op)), op.device, op.dtype)


def finish(
    op: LinearOperator,
    V: Tensor,
    accuracy: Accuracy,
    applications: int,
    *,
    beside: float | None = None,
    gram: Tensor | None = None,
) -> Triplets:
    """Turn orthonormal right vectors into triplets, by a Rayleigh-Ritz step on `M V` itself.

    Working with `M V` instead of `M^T M` keeps singular values far below the largest one
    accurate. `gram`, the images of V under `M^T M` where they are known, saves the application
    of `M^T` that the residuals need, unless they are too inexact to tell. `beside` is the first
    value behind those found.
    """
    eps = torch.finfo(op.dtype).eps
    images = wide(op.forward_rows(V))
    applications += V.shape[0]
    # Rows that are orthonormal up to the rounding of float32 make values too large by as much.
    L, right_basis = rows_lq(wide(V), eps / 100)
    images = torch.linalg.solve_triangular(L, images, upper=False)
    triangle, left_basis = rows_lq(images, eps / 100)
    right, S, left = (part.to(images.device) for part in torch.linalg.svd(small(triangle)))
    U, exact = left @ left_basis, right.T @ right_basis
    V = sent(exact, op.device, op.dtype).contiguous()
    rows = sent(U, op.device, op.dtype).contiguous()
    verdict = None
    # Where a value has lost half of its digits to squaring, the residual is taken anew.
    if gram is not None and bool(S[-1] > 30 * eps**0.5 * S[0]):
        back = right.T @ torch.linalg.solve_triangular(L, wide(gram), upper=False) / S[:, None]
        verdict = _judged(op, S, exact, back, accuracy, beside)
    if verdict is None or not bool(verdict[2].all()):
        back = wide(op.adjoint_rows(rows))
        applications += V.shape[0]
        verdict = _judged(op, S, exact, back, accuracy, beside)
    return assembled(op, S, rows, V, *verdict, applications)


def assembled(
    op: LinearOperator,
    S: Tensor,
    U: Tensor,
    V: Tensor,
    residuals: Tensor,
    errors: Tensor,
    accurate: Tensor,
    applications: int,
) -> Triplets:
    """Triplets in the operator's precision, from values in float64, which are rounded down."""
    residuals, errors = (sent(part, op.device, op.dtype) for part in (residuals, errors))
    accurate = accurate.to(op.device)
    return Triplets(rounded_down(S, op), U, V, residuals, errors, accurate, applications)


def _judged(
    op: LinearOperator,
    S: Tensor,
    V: Tensor,
    back: Tensor,
    accuracy: Accuracy,
    beside: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals, errors, and which values are accurate, for `M v = s u` and `back = M^T u`."""
    defects = back - S[:, None] * V
    residuals, overlaps = defects.norm(dim=1), defects @ V.T
    noise = rounding_errors(op, S, overlaps)
    accepted = accuracy.accepts(S, residuals, beside, float(S[0]))
    allowed, floor = accuracy.tol * S, ROUNDING * accuracy.eps * S[0]
    # Rounding points anywhere, while what the iteration has missed lies outside of V.
    rounding = accuracy.eps * S[0] + 4 * V.shape[1] ** 0.5 * spread(overlaps)
    blurred = torch.maximum(residuals, noise)
    zero = (blurred >= S) & (residuals <= torch.clamp(rounding, max=floor))
    # A residual says that some value is near; that it is the one of this rank, the stopping rule,
    # which does not look below the floor.
    unknown = torch.where(floor >= S, torch.clamp(blurred, min=floor), blurred)
    errors = torch.where(accepted, torch.maximum(allowed, noise), unknown)
    return residuals, errors, (accepted & (noise <= allowed)) | zero


def spread(overlaps: Tensor) -> Tensor:
    """The root of the mean square of each row."""
    return overlaps.square().mean(dim=1).sqrt()


def rounding_errors(op: LinearOperator, S: Tensor, overlaps: Tensor) -> Tensor:
    """How far rounding may move each value, from `<M^T u_i - s_i v_i, v_j>`.

    After a Rayleigh-Ritz step these vanish but for the rounding of the applications, of which
    each is a sample; that with j = i is what moves `s_i` at first order.
    """
    small_algebra = 4 * torch.finfo(S.dtype).eps * S[0]
    sampled = 4 * spread(overlaps) + 2 * overlaps.diagonal().abs()
    return 2 * margin(op) * S + small_algebra + sampled
