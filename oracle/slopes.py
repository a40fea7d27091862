"""Oracles for Lipschitz constants: sampled slopes, and dense Jacobians in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, *self.parts)


def largest_slope(model: nn.Module, in_shape: tuple[int, ...], pairs: int, seed: int = 0) -> float:
    """The largest `||f(x) - f(y)|| / ||x - y||` over random pairs, near and far, in float64."""
    wide = copy.deepcopy(model).double().eval()
    generator = torch.Generator().manual_seed(seed)
    best, block = 0.0, 500
    with torch.no_grad():
        for start in range(0, pairs, block):
            count = min(block, pairs - start)
            shape = (count, *in_shape)
            x, move = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
            sizes = 10.0 ** (4 * torch.rand(2, count, generator=generator).double() - 3)
            x, move = (
                part * size.reshape(count, *[1] * len(in_shape))
                for part, size in zip((x, move), sizes, strict=True)
            )
            rise = (wide(x + move) - wide(x)).reshape(count, -1).norm(dim=1)
            best = max(best, float((rise / move.reshape(count, -1).norm(dim=1)).max()))
    return best


def pair_slopes(model: nn.Module, in_shape: tuple[int, ...], pairs: int, seed: int = 0) -> float:
    """As `largest_slope`, one input at a time, for models that take no batches."""
    one_by_one = Function(lambda rows: torch.stack([model(row[None]).flatten() for row in rows]))
    return largest_slope(one_by_one, in_shape, pairs, seed)


def jacobian_norms(model: nn.Module, points: Tensor, *, at_once: bool = False) -> Tensor:
    """The norms of the Jacobians at some points, from dense matrices in float64.

    All rows of a matrix at once is faster, but not every operation can do that.
    """
    wide = copy.deepcopy(model).double().eval()
    flat = functools.partial(_flat, wide)
    jacobian = functools.partial(torch.autograd.functional.jacobian, flat, vectorize=at_once)
    matrices = [jacobian(x) for x in points.double()]
    return torch.stack([torch.linalg.matrix_norm(m.flatten(1), ord=2) for m in matrices])


def affine_norm(model: nn.Module, in_shape: tuple[int, ...]) -> float:
    """The norm of an affine model that may mix the inputs of a batch, from its Jacobian."""
    generator = torch.Generator().manual_seed(1)
    return float(jacobian_norms(model, torch.randn(1, *in_shape, generator=generator))[0])


# Where functions are steep: small, usual and large numbers, and some that are nearly alike.
_SCALES = (1e-3, 0.3, 1.0, 3.0, 20.0)
_STEP = 1e-6


def starting_points(size: int, seed: int) -> Tensor:
    """Points at which a function may be steep, one a row."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    points = [scale * randn(2, size) for scale in _SCALES]
    alike = randn(3, 1) + 1e-4 * randn(3, size)
    peak = 1e-3 * randn(1, size)
    peak[0, size // 2 :][:1] = 5.0
    return torch.cat([*points, alike, peak])


def numeric_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """The Jacobian at a flat point by differences, which asks no derivative of anybody."""
    moves = _STEP * torch.eye(x.numel(), dtype=torch.float64)
    with torch.no_grad():
        columns = [(model((x + m)[None]) - model((x - m)[None])).flatten() for m in moves]
    return torch.stack(columns, 1) / (2 * _STEP)


def steepest(model: nn.Module, size: int, seed: int, stride: int = 1) -> float:
    """The steepest that a model of flat float64 inputs is found to be.

    Norms of dense Jacobians, those that torch states and those from differences, and slopes
    between pairs of points, which see jumps too. With a stride, at fewer points.
    """
    points = starting_points(size, seed)
    finite = Function(lambda x: torch.where((y := model(x)).isinf(), 0.0, y))
    with torch.no_grad():
        image = finite(points[:1])
    if image.numel() == 0:
        return 0.0
    matrices = []
    for x in points[::stride]:
        try:
            flat = functools.partial(_flat, finite)
            matrices.append(torch.autograd.functional.jacobian(flat, x))
        except RuntimeError:  # a few operations have no derivative
            break
    if image.dtype == torch.float64:  # small differences say nothing of single precision
        matrices += [numeric_jacobian(finite, x) for x in points[::stride]]
        pairs = pair_slopes(finite, (size,), 60 // stride, seed)
    else:
        pairs = 0.0
    return max([pairs, *(float(torch.linalg.matrix_norm(m, ord=2)) for m in matrices)])


def _flat(model: nn.Module, x: Tensor) -> Tensor:
    image: Tensor = model(x[None])
    return image.flatten()


def climbed(model: nn.Module, size: int, seed: int, starts: int) -> float:
    """The steepest that gradient ascent finds, from several points.

    What counts is the slope between two points at a small distance along the leading direction of
    the Jacobian by differences: no matter what is not smooth there, none may exceed a bound.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(starting_points(size, seed)), generator=generator)
    best = 0.0
    for x in starting_points(size, seed)[order[:starts]]:
        for step in (1.0, 0.3, 0.1):
            slope, u, v = _leading(model, x)
            best = max(best, slope)
            uphill = _uphill(model, x, u, v)
            if uphill is None:  # flat around here, or not to be differentiated twice
                uphill = torch.randn(size, generator=generator, dtype=torch.float64)
            x = x + step * max(1.0, float(x.abs().max())) * uphill / uphill.norm()
        best = max(best, _leading(model, x)[0])
    return best


def _leading(model: nn.Module, x: Tensor) -> tuple[float, Tensor, Tensor]:
    """A slope at a point, and the singular vectors that belong to it."""
    matrix = numeric_jacobian(model, x)
    if not bool(matrix.isfinite().all()):
        return 0.0, matrix[:, 0], x
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    v = vh[0]
    with torch.no_grad():
        rise = model((x + _STEP * v)[None]) - model((x - _STEP * v)[None])
    return float(rise.norm()) / (2 * _STEP), u[:, 0], v


def _uphill(model: nn.Module, x: Tensor, u: Tensor, v: Tensor) -> Tensor | None:
    """The gradient of `u^T J(x) v`."""
    x = x.clone().requires_grad_()
    try:
        (row,) = torch.autograd.grad(model(x[None]).flatten(), x, u, create_graph=True)
        (found,) = torch.autograd.grad(row @ v, x)
    except RuntimeError:
        return None
    good = bool(found.isfinite().all()) and float(found.norm()) > 0
    return found if good else None
