"""Singular triplets: inside as flat rows, outside as a `Spectrum`; what each of them is worth.

The algebra here is in float64 whatever the operator computes in, since sums over long rows in
float32 lose more than applying the layer does: what is left is the rounding of the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._linalg import on_host, orthonormal_rows, rows_lq, sent, tall_qr, wide
from spectralclip._operators import LinearOperator, plain_numerics
from spectralclip._spectrum.stopping import ROUNDING, StoppingRule

# Values are rounded down by this many eps, so that they are lower bounds. Applying a layer moved
# a value by up to 0.5 eps (dense and convolutional layers of up to 4608 products a sum).
ROUNDED_DOWN = 4


@final
@dataclass(frozen=True)
class Spectrum:
    """The leading singular triplets of a layer: `M v = s u` and `M^T u = s v`.

    It unpacks as `U, S, V`.

    Attributes:
        S: Singular values, descending, of shape `(k,)`.
        U: Left singular vectors, orthonormal, of shape `(k, *out_shape)`.
        V: Right singular vectors, orthonormal, of shape `(k, *in_shape)`.
        residuals: `sqrt(||M v - s u||^2 + ||M^T u - s v||^2)` for each triplet: some singular
            value of the layer lies within this distance of `s`.
        errors: How far each value may be off, estimated from its residual and from the rounding
            seen: at most `tol * s` for a value that has converged, or one that is not to be told
            from zero.
        converged: Whether all values are estimated to be within the tolerance (taken as 20 eps
            where it is less), or are zero up to rounding in the largest.
        num_matvecs: Vectors sent through `M` or `M^T`, one each.
        advice: If not converged, what to do; else empty.

    Example:
        >>> import torch
        >>> from spectralclip import svds
        >>> U, S, V = svds(torch.nn.Linear(5, 3), k=2)
        >>> U.shape, S.shape, V.shape
        (torch.Size([2, 3]), torch.Size([2]), torch.Size([2, 5]))
    """

    S: Tensor
    U: Tensor
    V: Tensor
    residuals: Tensor
    errors: Tensor
    converged: bool
    num_matvecs: int
    advice: str = ""

    def __iter__(self) -> Iterator[Tensor]:
        """U, S and V, in this order."""
        return iter((self.U, self.S, self.V))

    def __repr__(self) -> str:
        """Values in short, and whether to trust them."""
        values = ", ".join(f"{value:.4g}" for value in self.S[:6].tolist())
        more = ", ..." if len(self.S) > 6 else ""
        state = "converged" if self.converged else f"NOT converged: {self.advice}"
        return f"Spectrum(S=[{values}{more}], {self.num_matvecs} matvecs, {state})"

    @staticmethod
    @plain_numerics()
    def from_right_vectors(
        op: LinearOperator, V: Tensor, *, tol: float = 1e-3, num_matvecs: int = 0
    ) -> Spectrum:
        """The triplets that some right vectors approximate, for solvers of your own.

        A Rayleigh-Ritz step on the span of V gives the values, which are lower bounds, and both
        sides' vectors; residuals and errors say what they are worth. It takes two products for each
        vector.

        Args:
            op: The operator.
            V: Linearly independent vectors, `(k, *in_shape)`.
            tol: The relative accuracy to judge by.
            num_matvecs: Products that it took to find V.
        """
        rows = op.input_rows(sent(V.detach(), op.device, op.dtype))
        eps = torch.finfo(op.dtype).eps
        rule = StoppingRule(max(tol, ROUNDING * eps), eps)
        found = finish(op, orthonormal_rows(rows, rows[:0]), rule, num_matvecs)
        advice = f"The residuals are too large for tol={tol:g}: iterate for longer, or loosen tol."
        return found.spectrum(op, advice)


class Verdict(NamedTuple):
    """What each triplet is worth."""

    residuals: Tensor  # sqrt(||M v - s u||^2 + ||M^T u - s v||^2)
    errors: Tensor  # how far each value may be off
    accurate: Tensor  # whether that is within the tolerance


class Triplets(NamedTuple):
    """Leading singular triplets on flat rows: unit vectors u, v with `s = <u, M v>`, descending.

    With a verdict, values are in the operator's precision and rounded down. Without one they are
    Ritz values in float64 on the CPU.
    """

    S: Tensor
    U: Tensor
    V: Tensor
    num_matvecs: int
    verdict: Verdict | None = None

    @property
    def converged(self) -> bool:
        """Whether all values are known to be accurate."""
        return self.verdict is not None and bool(self.verdict.accurate.all())

    def first(self, k: int) -> Triplets:
        verdict = self.verdict and Verdict(*(part[:k] for part in self.verdict))
        return self._replace(S=self.S[:k], U=self.U[:k], V=self.V[:k], verdict=verdict)

    def scaled(self, factor: float) -> Triplets:
        """The triplets of a multiple of the operator."""
        verdict = self.verdict and self.verdict._replace(
            residuals=factor * self.verdict.residuals, errors=factor * self.verdict.errors
        )
        return self._replace(S=factor * self.S, verdict=verdict)

    def swapped(self) -> Triplets:
        return self._replace(U=self.V, V=self.U)

    def spectrum(self, op: LinearOperator, advice: str) -> Spectrum:
        """In the layer's own shapes, with advice for the case that not all are accurate."""
        assert self.verdict is not None
        residuals, errors, _ = self.verdict
        U, V = op.output_tensor(self.U), op.input_tensor(self.V)
        advice = "" if self.converged else advice
        return Spectrum(self.S, U, V, residuals, errors, self.converged, self.num_matvecs, advice)


def margin(op: LinearOperator) -> float:
    """The relative amount by which values are rounded down."""
    # In float64 the sums over long rows are no more exact than the products.
    sums = max(op.shape) ** 0.5 if op.dtype == torch.float64 else 0.0
    return (ROUNDED_DOWN + sums) * torch.finfo(op.dtype).eps


def finish(
    op: LinearOperator,
    V: Tensor,
    rule: StoppingRule,
    num_matvecs: int,
    *,
    beside: float | None = None,
    gram: Tensor | None = None,
) -> Triplets:
    """Turn orthonormal right vectors into triplets, by a Rayleigh-Ritz step on `M V` itself.

    Working with `M V` instead of `M^T M` keeps singular values far below the largest one
    accurate. `gram`, the images of V under `M^T M` where they are known, saves the product with
    `M^T` that the residuals need, unless they are too inexact to tell. `beside` is the first
    value behind those found.
    """
    eps = torch.finfo(op.dtype).eps
    images = wide(op.forward_rows(V))
    num_matvecs += V.shape[0]
    # Rows that are orthonormal up to the rounding of float32 make values too large by as much.
    L, right_basis = rows_lq(wide(V), eps / 100)
    images = torch.linalg.solve_triangular(L, images, upper=False)
    triangle, left_basis = rows_lq(images, eps / 100)
    right, S, left = (part.to(images.device) for part in torch.linalg.svd(on_host(triangle)))
    U, exact = left @ left_basis, right.T @ right_basis
    V = sent(exact, op.device, op.dtype).contiguous()
    rows = sent(U, op.device, op.dtype).contiguous()
    verdict = None
    # Where a value has lost half of its digits to squaring, the residual is taken anew.
    if gram is not None and bool(S[-1] > 30 * eps**0.5 * S[0]):
        back = right.T @ torch.linalg.solve_triangular(L, wide(gram), upper=False) / S[:, None]
        verdict = _judged(op, S, exact, back, rule, beside)
    if verdict is None or not bool(verdict.accurate.all()):
        back = wide(op.adjoint_rows(rows))
        num_matvecs += V.shape[0]
        verdict = _judged(op, S, exact, back, rule, beside)
    return assembled(op, S, rows, V, verdict, num_matvecs)


def left_vectors(op: LinearOperator, images: Tensor, S: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Left vectors from the images `M V`, made orthonormal, and the residuals of the triplets."""
    Q, triangle = tall_qr(images.T)
    U = Q.T * torch.where(triangle.diagonal() < 0, -1.0, 1.0)[:, None]
    forward, backward = images - S[:, None] * U, op.adjoint_rows(U) - S[:, None] * V
    return U, torch.hypot(forward.norm(dim=1), backward.norm(dim=1))


def assembled(
    op: LinearOperator, S: Tensor, U: Tensor, V: Tensor, verdict: Verdict, num_matvecs: int
) -> Triplets:
    """Triplets in the operator's precision, from values in float64, which are rounded down."""
    residuals, errors, accurate = verdict
    S, residuals, errors = (
        sent(part, op.device, op.dtype) for part in (S * (1 - margin(op)), residuals, errors)
    )
    return Triplets(S, U, V, num_matvecs, Verdict(residuals, errors, accurate.to(op.device)))


def _judged(
    op: LinearOperator, S: Tensor, V: Tensor, back: Tensor, rule: StoppingRule, beside: float | None
) -> Verdict:
    """What triplets with `M v = s u` and `back = M^T u` are worth."""
    defects = back - S[:, None] * V
    residuals, overlaps = defects.norm(dim=1), defects @ V.T
    noise = rounding_errors(op, S, overlaps)
    accepted = rule.accepts(S, residuals, beside, float(S[0]))
    allowed, floor = rule.tol * S, ROUNDING * rule.eps * S[0]
    # Rounding points anywhere, while what the iteration has missed lies outside of V.
    rounding = rule.eps * S[0] + 4 * V.shape[1] ** 0.5 * _spread(overlaps)
    blurred = torch.maximum(residuals, noise)
    zero = (blurred >= S) & (residuals <= torch.clamp(rounding, max=floor))
    # A residual says that some value is near; that it is the one of this rank, the stopping rule,
    # which does not look below the floor.
    unknown = torch.where(floor >= S, torch.clamp(blurred, min=floor), blurred)
    errors = torch.where(accepted, torch.maximum(allowed, noise), unknown)
    return Verdict(residuals, errors, (accepted & (noise <= allowed)) | zero)


def _spread(overlaps: Tensor) -> Tensor:
    """The root of the mean square of each row."""
    return overlaps.square().mean(dim=1).sqrt()


def rounding_errors(op: LinearOperator, S: Tensor, overlaps: Tensor) -> Tensor:
    """How far rounding may move each value, from `<M^T u_i - s_i v_i, v_j>`.

    After a Rayleigh-Ritz step these vanish but for the rounding of the products, of which
    each is a sample; that with j = i is what moves `s_i` at first order.
    """
    small_algebra = 4 * torch.finfo(S.dtype).eps * S[0]
    sampled = 4 * _spread(overlaps) + 2 * overlaps.diagonal().abs()
    return 2 * margin(op) * S + small_algebra + sampled
