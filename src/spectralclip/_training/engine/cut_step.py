"""Projecting weights onto cuts after a step, and the momentum that would undo it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from spectralclip._linalg import Array, as_array, solve_nonnegative
from spectralclip._training.momentum import Momentum

# What is handed a parameter, and what to do with the momentum that the optimizer has of it.
MomentumProjection: TypeAlias = Callable[[Tensor, Callable[[Momentum], None]], None]

# The share of the largest excess that is nothing.
EXACT = 1e-6
# Systems of equations tried before the exact way.
QUICK_TRIES = 4


class Cuts(ABC):
    """Gradients `g_i` of some singular values in a parameter: each says `<g_i, W'> <= c`."""

    @abstractmethod
    def gram(self) -> Tensor:
        """`<g_i, g_j>`."""

    @abstractmethod
    def products(self, tensor: Tensor) -> Tensor:
        """`<g_i, tensor>` for a tensor of the parameter's shape."""

    @abstractmethod
    def add_(self, tensor: Tensor, weights: Tensor) -> None:
        """Add `sum_i weights_i g_i` to a tensor, in place."""

    @abstractmethod
    def rows(self) -> Tensor:
        """The `g_i` themselves as `(m, n)`."""

    @abstractmethod
    def chosen(self, index: Tensor) -> Cuts:
        """Some of the cuts."""


@final
class DenseCuts(Cuts):
    """Cuts that are stored as they are."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def gram(self) -> Tensor:
        return self._rows @ self._rows.mT

    def products(self, tensor: Tensor) -> Tensor:
        return self._rows @ tensor.reshape(-1).to(self._rows.dtype)

    def add_(self, tensor: Tensor, weights: Tensor) -> None:
        tensor.add_((weights @ self._rows).reshape(tensor.shape).to(tensor.dtype))

    def rows(self) -> Tensor:
        return self._rows

    def chosen(self, index: Tensor) -> Cuts:
        return DenseCuts(self._rows[index])


@final
class FactorCuts(Cuts):
    """Cuts in the kernels of a convolution, as factors of rank two, never multiplied out.

    Args:
        kernel: `(m,)`, the kernel of each cut among the groups of a layer.
        groups: How many kernels there are.
        left: `(m, 2, rows)`.
        right: `(m, 2, columns)`.
    """

    def __init__(self, kernel: Tensor, groups: int, left: Tensor, right: Tensor) -> None:
        self._kernel, self._groups = kernel, groups
        self._left, self._right = left, right

    def gram(self) -> Tensor:
        m = len(self._left)
        left, right = self._left.flatten(0, 1), self._right.flatten(0, 1)
        products = (left @ left.mT) * (right @ right.mT)
        products = products.reshape(m, 2, m, 2).sum((1, 3))
        if self._groups > 1:
            products = products * (self._kernel[:, None] == self._kernel)
        return products

    def products(self, tensor: Tensor) -> Tensor:
        kernels = self._as_kernels(tensor).to(self._left.dtype)
        if self._groups == 1:
            images = self._right.flatten(0, 1) @ kernels[0].mT
        else:
            images = torch.bmm(self._right, kernels[self._kernel].mT).flatten(0, 1)
        return (images.reshape(self._left.shape) * self._left).sum((1, 2))

    def add_(self, tensor: Tensor, weights: Tensor) -> None:
        kernels = self._as_kernels(tensor)
        scaled = self._left * weights[:, None, None]
        direct = kernels.dtype == scaled.dtype and kernels.data_ptr() == tensor.data_ptr()
        if self._groups == 1:
            left, right = scaled.flatten(0, 1), self._right.flatten(0, 1)
            if direct:
                kernels[0].addmm_(left.mT, right)
                return
            change = (left.mT @ right)[None]
        else:
            change = torch.zeros_like(kernels, dtype=scaled.dtype)
            change.index_add_(0, self._kernel, torch.bmm(scaled.mT, self._right))
        tensor.add_(change.reshape(tensor.shape).to(tensor.dtype))

    def rows(self) -> Tensor:
        each = torch.bmm(self._left.mT, self._right)
        if self._groups == 1:
            return each.flatten(1)
        whole = each.new_zeros(len(each), self._groups, *each.shape[1:])
        whole[torch.arange(len(each), device=each.device), self._kernel] = each
        return whole.flatten(1)

    def chosen(self, index: Tensor) -> Cuts:
        return FactorCuts(self._kernel[index], self._groups, self._left[index], self._right[index])

    def _as_kernels(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(self._groups, self._left.shape[-1], self._right.shape[-1])


def project_(
    tensor: Tensor, cuts: Cuts, excess: Array, tolerance: float | None = None
) -> Cuts | None:
    """Move a tensor, in place, to the nearest point that takes away each cut's excess.

    Args:
        tensor: The parameter's values.
        cuts: The cuts.
        excess: `(m,)`: how far each value is above its bound; negative ones are below it.
        tolerance: How much of an excess may be left; next to nothing by default.

    Returns:
        The cuts that were active, or None if there were none.
    """
    gram = cuts.gram()
    if tolerance is None:
        tolerance = EXACT * float(np.abs(excess).max(initial=0.0))
    products = as_array(gram)
    if not np.isfinite(products).all():  # gradients in a tiny factor: a scale has to do
        return None
    multipliers = _solution(products, excess, tolerance)
    active = np.flatnonzero(multipliers > 0)
    if not len(active):
        return None
    index = torch.from_numpy(active).to(tensor.device)
    chosen = cuts if len(active) == len(excess) else cuts.chosen(index)
    chosen.add_(tensor, torch.from_numpy(-multipliers[active]).to(gram))
    return chosen


def project_momentum_(momentum: Momentum, cuts: Cuts) -> None:
    """Take out of a momentum what would push the weight outward along the cuts.

    The optimizer moves the weight by a multiple of `-P b`, where P is its metric. It is this step
    that is moved, as little as possible, to where `<g_i, P b> >= 0` for all cuts; and b follows.
    Moving b as little as possible instead would move the step farthest in those entries where P
    is largest, such as weights whose gradients have been near zero: by any amount.
    """
    buffer, metric = momentum.buffer, momentum.metric
    step = buffer if metric is None else buffer * metric
    gram = cuts.gram()
    push = -as_array(cuts.products(step))
    if not (push > 0).any():
        return
    multipliers = _solution(as_array(gram), push, EXACT * float(np.abs(push).max()))
    weights = torch.from_numpy(multipliers).to(buffer.device, gram.dtype)
    if metric is None:
        cuts.add_(buffer, weights)
    else:
        change = torch.zeros_like(buffer, dtype=gram.dtype)
        cuts.add_(change, weights)
        buffer.add_((change / metric).to(buffer.dtype))


def _solution(gram: Array, excess: Array, tolerance: float) -> Array:
    """Non-negative multipliers that leave no more of any excess than a tolerance.

    Cuts that are still violated are taken in, and multipliers that come out negative left
    out, all at once: that is nearly always the solution after two or three systems of equations,
    and otherwise a start for the exact way.
    """
    ridge = 1e-10 * max(float(gram.diagonal().max(initial=0.0)), 1e-300) * np.eye(len(excess))
    matrix, free = gram + ridge, excess > tolerance
    multipliers = np.zeros(len(excess))
    for _ in range(QUICK_TRIES):
        multipliers = np.zeros(len(excess))
        while free.any():
            index = free.nonzero()[0]
            try:
                found = np.linalg.solve(matrix[index[:, None], index], excess[index])
            except np.linalg.LinAlgError:
                return solve_nonnegative(gram, excess)
            if found.min() >= 0:
                multipliers[index] = found
                break
            free[index[found <= 0]] = False
        missed = (excess - gram @ multipliers > tolerance) & ~free
        if not missed.any():
            return multipliers
        free |= missed
    return solve_nonnegative(gram, excess, multipliers)
