"""Closed forms of circular convolutions: one small matrix, the symbol, at each frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracle.matrix import Array


def is_circulant(conv: Any, sides: Sequence[int]) -> bool:
    """Whether a convolution of images of this size is one on the torus of this size."""
    if conv.padding_mode != "circular" or conv.padding == "valid":
        return False
    if any(side % step for side, step in zip(sides, conv.stride, strict=True)):
        return False
    axes = zip(conv.kernel_size, conv.dilation, strict=True)
    total = [dilation * (size - 1) for size, dilation in axes]
    return conv.padding == "same" or [2 * padding for padding in conv.padding] == total


def symbols(conv: Any, sides: Sequence[int]) -> Tensor:
    """The symbols of a convolution on a torus, in complex double.

    Where the kernel begins is a phase of each wave, and does not matter to singular values. Under a
    stride, a frequency of the output is that of several waves of the input, which stand side by
    side.

    Args:
        conv: A convolution over any number of axes; its padding is not looked at.
        sides: The sides of the torus, multiples of the stride.

    Returns:
        The matrices, as (frequencies of the output, groups, rows, columns).
    """
    weight = conv.weight.detach().double()
    outputs, inputs, *kernel = weight.shape
    taps = weight.new_zeros(outputs, inputs, *sides)
    for place in product(*map(range, kernel)):
        at = [t * d % n for t, d, n in zip(place, conv.dilation, sides, strict=True)]
        taps[(..., *at)] += weight[(..., *place)]
    axes, steps = len(sides), conv.stride
    symbol = torch.fft.fftn(taps, dim=tuple(range(2, 2 + axes))) / math.sqrt(math.prod(steps))
    coarse = [n // s for n, s in zip(sides, steps, strict=True)]
    pairs = [size for pair in zip(steps, coarse, strict=True) for size in pair]
    symbol = symbol.reshape(conv.groups, outputs // conv.groups, inputs, *pairs)
    order = [*range(4, 4 + 2 * axes, 2), 0, 1, 2, *range(3, 3 + 2 * axes, 2)]
    matrices: Tensor = symbol.permute(order).reshape(
        math.prod(coarse), conv.groups, outputs // conv.groups, inputs * math.prod(steps)
    )
    return matrices


def symbol_values(conv: Any, sides: Sequence[int]) -> Array:
    """All singular values of a circular convolution, descending."""
    values = torch.linalg.svdvals(symbols(conv, sides)).flatten()
    return np.asarray(values.sort(descending=True).values.numpy())


def symbol_norms(conv: Any, sides: Sequence[int]) -> Array:
    """The norm at each frequency; the largest is that of the circular convolution."""
    matrices = symbols(conv, sides)
    # Of a single row or column, the Frobenius norm is the norm, and faster.
    order = 2 if min(matrices.shape[-2:]) > 1 else "fro"
    norms = torch.linalg.matrix_norm(matrices, order).amax(1)
    coarse = [n // s for n, s in zip(sides, conv.stride, strict=True)]
    return np.asarray(norms.reshape(coarse).numpy())
