"""PowerQR: as it was published, and the same iteration on the library's operator.

It has no stopping rule. Here it gets an oracle's: it stops at the very iteration at which all
its values are within the tolerance of the true ones.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common.references import worst_error
from spectralclip import LinearOperator


def published_start(k: int, in_shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(k, *in_shape, generator=generator)


def published_iterations(module: nn.Module, X: Tensor, iterations: int, shift: float) -> Tensor:
    """Iterations by `.backward()`; returns the singular values.

    The module's parameters require gradients, as in training, so that each backward pass
    computes theirs too. `f(0)` is computed anew each time, for one zero input.
    """
    for _ in range(iterations):
        X = X.detach().requires_grad_()
        output = module(X) - module(torch.zeros_like(X[:1]))
        (0.5 * output.square().sum()).backward()
        with torch.no_grad():
            Q, R = torch.linalg.qr((shift * X + X.grad).reshape(X.shape[0], -1).T)
            X = Q.T.reshape(X.shape)
        module.zero_grad()
    return values_from(R, shift)


def fast_iterations(op: LinearOperator, rows: Tensor, iterations: int, shift: float) -> Tensor:
    """The same on flat rows, through the operator."""
    for _ in range(iterations):
        rows, R = _fast_iteration(op, rows, shift)
    return values_from(R, shift)


def iterations_needed(
    op: LinearOperator,
    rows: Tensor,
    shift: float,
    reference: np.ndarray,
    tols: tuple[float, ...],
    limit: int,
) -> dict[float, int | None]:
    """At which iteration the worst of the values is first within each tolerance."""
    needed: dict[float, int | None] = dict.fromkeys(tols)
    for iteration in range(1, limit + 1):
        rows, R = _fast_iteration(op, rows, shift)
        error = worst_error(values_from(R, shift).numpy(), reference)
        for tol in tols:
            if needed[tol] is None and error <= tol:
                needed[tol] = iteration
        if None not in needed.values():
            break
    return needed


def values_from(R: Tensor, shift: float) -> Tensor:
    """`sqrt(|diag R| - mu)`, descending."""
    values = (R.diagonal().abs().double() - shift).clamp_min(0).sqrt()
    return values.sort(descending=True).values


def _fast_iteration(op: LinearOperator, rows: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    Q, R = torch.linalg.qr((shift * rows + op.gram_rows(rows)).T)
    return Q.T, R
