"""`svds`, `spectral_norm` and `singular_values`: the spectrum of a layer."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from spectralclip._common import checked_generator
from spectralclip._linalg import on_host, sent
from spectralclip._operators import Layer, LinearOperator, as_operator, plain_numerics
from spectralclip._spectrum.exact import DENSE_LIMIT, Exact, require_dense
from spectralclip._spectrum.solvers import Lanczos, Solver
from spectralclip._spectrum.triplets import Spectrum

# What a Lanczos run costs beyond applying the layer, in multiply-adds.
_LANCZOS_OVERHEAD = 5e8


class ConvergenceWarning(UserWarning):
    """Singular values were returned that are not known to the accuracy asked for."""


@plain_numerics()
def svds(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None = None,
    k: int | None = None,
    *,
    tol: float = 1e-3,
    solver: Solver | Literal["auto"] = "auto",
    v0: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The k largest singular values of a layer, with their vectors.

    Args:
        layer: A module, a sequence of modules (their composition), an affine callable, or
            what `as_operator` made of one.
        in_shape: Shape of one input, without the batch dimension; may be left out where the
            layer knows it: `nn.Linear`, and compositions that begin with one.
        k: How many triplets, at most `min(m, n)`; by default 6, or all where there are fewer.
        tol: Relative accuracy of the values. Iterations stop on residual-based estimates of
            the error, which are no proof: a Ritz value is a lower bound.
        solver: `Lanczos()`, `PowerQR()`, `Exact()`, a `Solver` of your own, or "auto": exact
            decomposition for layers that are block diagonal (dense, 1x1, circular, batch norm) or
            small, else Lanczos.
        v0: Right vectors to start from, one of shape `in_shape` or a batch of them; for
            example the V of an earlier result.
        generator: Source of the random start; by default the same for each call.

    Returns:
        A `Spectrum`, which unpacks as `U, S, V`; its `converged` says whether the tolerance was
        reached.

    Warns:
        ConvergenceWarning: It was not; the warning and `advice` name the remedy.

    Raises:
        ValueError: The arguments do not fit the layer; nothing has been changed.

    Example:
        >>> import torch
        >>> from spectralclip import svds
        >>> conv = torch.nn.Conv2d(16, 32, 3, padding=1, padding_mode="reflect")
        >>> spectrum = svds(conv, (16, 20, 20), k=3)
        >>> spectrum.converged, spectrum.V.shape
        (True, torch.Size([3, 16, 20, 20]))
    """
    op = as_operator(layer, in_shape)
    k = min(6, *op.shape) if k is None else k
    found = leading_spectrum(op, k, tol=tol, solver=solver, v0=v0, generator=generator)
    return warned(op, found)


def leading_spectrum(
    op: LinearOperator,
    k: int,
    *,
    tol: float = 1e-3,
    solver: Solver | Literal["auto"] = "auto",
    v0: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """`svds` without a warning, for callers that look at `converged` or do not mind."""
    _check_request(op, k, tol)
    k = operator.index(k)
    start = _start_batch(op, v0)
    generator = checked_generator(generator)
    chosen = _choose(op, k) if solver == "auto" else solver
    if not isinstance(chosen, Solver):
        raise TypeError(
            'solver must be "auto", Lanczos(), PowerQR(), Exact() or a Solver of your own, got '
            f"{solver!r}."
        )
    return chosen.solve(op, k, tol, start, generator)


def warned(op: LinearOperator, spectrum: Spectrum) -> Spectrum:
    """The spectrum itself, after a warning where it has not converged."""
    if not spectrum.converged:
        # The lines of the caller's caller, past the decorator of the public function.
        warnings.warn(f"{op.name}: {spectrum.advice}", ConvergenceWarning, stacklevel=4)
    return spectrum


@plain_numerics()
def spectral_norm(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None = None,
    *,
    tol: float = 1e-3,
    differentiable: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The largest singular value of a layer, its Lipschitz constant, as a scalar tensor.

    Args:
        layer: A module, a sequence of modules (their composition), or an affine callable.
        in_shape: Shape of one input, as for `svds`.
        tol: Relative accuracy.
        differentiable: Attach the value to the layer's parameters, for penalties. The
            gradient is that of `<u, M(W) v>` at the leading singular vectors, which is exact
            while the largest value is simple, and a subgradient otherwise.
        generator: Source of the random start; by default the same for each call.

    Warns:
        ConvergenceWarning: The tolerance was not reached.

    Example:
        >>> import torch
        >>> from spectralclip import spectral_norm
        >>> conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        >>> penalty = spectral_norm(conv, (3, 32, 32), differentiable=True)
        >>> penalty.backward()
        >>> conv.weight.grad.shape
        torch.Size([8, 3, 3, 3])
    """
    op = as_operator(layer, in_shape)
    spectrum = warned(op, leading_spectrum(op, 1, tol=tol, generator=generator))
    if differentiable:
        return op.bilinear(spectrum.U, spectrum.V)
    return spectrum.S[0]


@plain_numerics()
def singular_values(
    layer: Layer | LinearOperator, in_shape: Sequence[int] | int | None = None
) -> Tensor:
    """All `min(m, n)` singular values of a layer, descending.

    Exact for layers that are block diagonal, whatever their size: dense layers,
    circular convolutions (also with a stride that divides the sides), 1x1 convolutions and
    others whose windows do not overlap, groups of these, batch norm, and such layers with a
    batch norm before or after. Others are decomposed as a dense matrix where that fits.

    Args:
        layer: A module, a sequence of modules (their composition), or an affine callable.
        in_shape: Shape of one input, as for `svds`.

    Raises:
        ValueError: The dense matrix would be too large; `svds` finds the leading values.

    Example:
        >>> import torch
        >>> from spectralclip import singular_values
        >>> conv = torch.nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular")
        >>> singular_values(conv, (16, 32, 32)).shape
        torch.Size([16384])
    """
    op = as_operator(layer, in_shape)
    m, n = op.shape
    form = op.block_form()
    if form is not None:
        values = form.values().to(op.device, op.dtype)
        copies = form.copies.to(values.device)
        spread = values.repeat_interleave(copies, dim=0).flatten()
        zeros = values.new_zeros(max(0, min(m, n) - spread.numel()))
        return torch.cat([spread, zeros]).sort(descending=True).values
    require_dense(op, "svds(layer, in_shape, k=...) finds the leading values.")
    whole: Tensor = torch.linalg.svdvals(on_host(op.to_dense()))
    return whole.to(op.device, op.dtype)


def _choose(op: LinearOperator, k: int) -> Solver:
    m, n = op.shape
    small = min(m, n)
    form = op.block_form()
    if form is not None and form.value_count >= k:
        pairs = 30 + 20 * k  # what Lanczos needs to three digits
        lanczos = _LANCZOS_OVERHEAD + 2 * pairs * form.application_work
        if form.work <= lanczos:
            return Exact()
    # Lanczos needs about ten blocks; when those nearly fill the space, take all of it.
    if m * n <= DENSE_LIMIT and (small <= 64 or (5 * k >= small and small <= 4096)):
        return Exact()
    return Lanczos()


def _check_request(op: LinearOperator, k: int, tol: float) -> None:
    most = min(op.shape)
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise TypeError(f"k must be an integer, got {k!r}.")
    if not 1 <= k <= most:
        m, n = op.shape
        raise ValueError(
            f"k={k} is out of range for {op.name}, a {m} x {n} matrix: choose 1 <= k <= {most}."
        )
    if not isinstance(tol, (int, float)) or not (math.isfinite(tol) and tol > 0):
        raise ValueError(f"tol must be a positive number, got {tol!r}.")


def _start_batch(op: LinearOperator, v0: Tensor | None) -> Tensor | None:
    if v0 is None:
        return None
    if not isinstance(v0, Tensor):
        raise TypeError(f"v0 must be a tensor, got {type(v0).__name__}.")
    batch = v0[None] if tuple(v0.shape) == op.in_shape else v0
    if tuple(batch.shape[1:]) != op.in_shape or batch.shape[0] < 1:
        raise ValueError(
            f"v0 must have shape {op.in_shape} or (j, *{op.in_shape}) for {op.name}, "
            f"got {tuple(v0.shape)}."
        )
    if not bool(torch.isfinite(batch).all()):
        raise ValueError("v0 holds NaN or infinite values.")
    return sent(batch.detach(), op.device, op.dtype)
