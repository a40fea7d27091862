"""The paper's closed forms for circular convolutions with one input or one output channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from spectralclip._common import Shape

__all__ = [
    "corollary_bounds",
    "duplicated_values",
    "lemma_singular_values",
    "theorem_singular_values",
]


def lemma_singular_values(kernel: Tensor, side: int | Sequence[int]) -> Tensor:
    """All singular values of a circular convolution with one input and one output channel.

    The paper's Lemma: with the kernel's autocorrelations `c_i = sum_j f_j f_(j+i)`, the values
    are `sqrt(c_0 + 2 sum_i c_i cos(2 pi i j / n))` for `j = 0, ..., n - 1`.

    The paper speaks of "the vectorized form" of kernel and input. That is right for one
    spatial axis only: a two-dimensional circular convolution is not a circulant matrix in the
    vectorized index, since rows wrap onto themselves and not onto their neighbours. With the
    d-dimensional autocorrelation and one root of unity for each axis, as here, the statement
    holds in every dimension. It needs stride 1 and circular padding.

    Args:
        kernel: The taps, one axis for each spatial axis.
        side: Side of the input, one number or one for each axis.

    Returns:
        The values, descending, in float64.

    Example:
        >>> import torch
        >>> from spectralclip.closed_forms import lemma_singular_values
        >>> lemma_singular_values(torch.tensor([1.0, 1.0]), 4).round(decimals=4).tolist()
        [2.0, 1.4142, 1.4142, 0.0]
    """
    return theorem_singular_values(kernel[None], side)


def theorem_singular_values(kernels: Tensor, side: int | Sequence[int]) -> Tensor:
    """All singular values of a circular convolution with one input or one output channel.

    The paper's Theorem: the squares of the values that the Lemma gives for the channels, in
    the order of the frequencies, add up. With several channels on both sides it fails: the
    symbol is then a matrix at each frequency, and has to be decomposed (`singular_values`).

    With m channels the layer is an `n x (m n)` or `(m n) x n` matrix, so there are n values.

    Args:
        kernels: `(m, *kernel)`: the taps of each of the m channels.
        side: Side of the input, one number or one for each axis.

    Returns:
        The values, descending, in float64.
    """
    taps = kernels.double()
    sides = _sides(side, taps.ndim - 1)
    squares = torch.zeros(sides, dtype=torch.float64, device=taps.device)
    for channel in taps:
        squares = squares + _squared_values(channel, sides)
    return squares.clamp_min(0).sqrt().flatten().sort(descending=True).values


def _squared_values(kernel: Tensor, sides: Shape) -> Tensor:
    """`sum_i c_i cos(<w, i>)` over all shifts i of the autocorrelation, at each frequency w."""
    total = torch.zeros(sides, dtype=torch.float64, device=kernel.device)
    axes = [torch.arange(side, dtype=torch.float64, device="cpu") for side in sides]
    grids = torch.meshgrid(*axes, indexing="ij")
    for shift in product(*[range(-taps + 1, taps) for taps in kernel.shape]):
        pairs = list(zip(shift, kernel.shape, strict=True))
        here = tuple(slice(max(0, -i), min(taps, taps - i)) for i, taps in pairs)
        there = tuple(slice(max(0, i), min(taps, taps + i)) for i, taps in pairs)
        turns = [
            (grid * i).remainder(n) / n for grid, i, n in zip(grids, shift, sides, strict=True)
        ]
        wave = torch.cos(2 * math.pi * torch.stack(turns).sum(0)).to(total.device)
        total = total + torch.sum(kernel[here] * kernel[there]) * wave
    return total


def duplicated_values(side: int | Sequence[int], axes: int = 1) -> int:
    """How many of the Theorem's n values are sure to have an equal among the others.

    The paper's Remark: frequencies `w` and `-w` give the same value, and only those with
    `w = -w` stand alone. On one axis of odd length that is one, of even length two; on
    several axes their numbers multiply.

    Args:
        side: Side of the input, one number or one for each axis.
        axes: Number of axes, if `side` is one number.
    """
    sides = _sides(side, axes if isinstance(side, int) else len(side))
    return math.prod(sides) - math.prod(2 if n % 2 == 0 else 1 for n in sides)


def corollary_bounds(kernels: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bound on the norm, from sums of taps alone.

    Both Corollaries of the paper: for one input or one output channel and m kernels on the
    other side, `sqrt(sum_l (sum_i f_i)^2) <= sigma_1 <= sqrt(sum_l (sum_i |f_i|)^2)`, with
    equality where all taps are non-negative. They hold in every dimension and for every side,
    with circular padding and stride 1. With m = 1 this is the Corollary for single channels.

    The lower bound is the value at frequency zero. With other paddings it may fail; the upper
    bound also holds for zero padding, whose matrix is a part of a larger circular one.

    Args:
        kernels: `(m, *kernel)`: the taps of each of the m channels.
    """
    flat = kernels.double().flatten(1)
    return flat.sum(1).norm(), flat.abs().sum(1).norm()


def _sides(side: int | Sequence[int], axes: int) -> Shape:
    sides = (side,) * axes if isinstance(side, int) else tuple(side)
    if len(sides) != axes or min(sides) < 1:
        raise ValueError(f"Expected {axes} positive sides, one for each spatial axis, got {side}.")
    return sides
