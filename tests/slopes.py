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

    def flat(x: Tensor) -> Tensor:
        return wide(x[None]).flatten()

    jacobian = functools.partial(torch.autograd.functional.jacobian, flat, vectorize=at_once)
    matrices = [jacobian(x) for x in points.double()]
    return torch.stack([torch.linalg.matrix_norm(m.flatten(1), ord=2) for m in matrices])


def dense_norm(model: nn.Module, in_shape: tuple[int, ...]) -> float:
    """The norm of an affine model, from its dense matrix."""
    generator = torch.Generator().manual_seed(1)
    return float(jacobian_norms(model, torch.randn(1, *in_shape, generator=generator))[0])
