"""Convolutions on a torus: their symbols, and the paper's closed forms.

With circular padding a convolution is diagonalized by the Fourier transform up to one small
matrix for each frequency, its *symbol*; the singular values of the layer are those of the
symbols (Sedghi et al. 2019). With a stride s that divides the side, the s frequencies that
the subsampling folds onto each other share one wider matrix (Senderovich et al. 2022).

The closed forms at the end are those of the paper's Lemma, Theorem, Remark and Corollaries on
layers with one input or one output channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from spectralclip._common import Shape


def folded_frequencies(sides: Shape, stride: Shape) -> tuple[Tensor, Tensor]:
    """The frequencies of an output torus that are needed, and how often each counts.

    A real kernel's symbol at `-w` is the conjugate of that at `w`: of each such pair one
    frequency is kept and counts twice.

    Returns:
        Integer frequencies `(f, d)` with entries below `side / stride`, and their counts.
    """
    reduced = [side // step for side, step in zip(sides, stride, strict=True)]
    axes = [torch.arange(size, device="cpu") for size in reduced]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(reduced))
    sizes = torch.tensor(reduced, device="cpu")
    mirrored = (-grid).remainder(sizes)
    places = [math.prod(reduced[axis + 1 :]) for axis in range(len(reduced))]
    weights = torch.tensor(places, device="cpu")
    rank, mirrored_rank = (grid * weights).sum(1), (mirrored * weights).sum(1)
    kept = rank <= mirrored_rank
    counts = torch.where(rank == mirrored_rank, 1, 2)
    return grid[kept], counts[kept]


def alias_frequencies(frequencies: Tensor, sides: Shape, stride: Shape) -> Tensor:
    """All input frequencies that a stride folds onto each output frequency: `(f, aliases, d)`."""
    sizes = [side // step for side, step in zip(sides, stride, strict=True)]
    reduced = torch.tensor(sizes, device="cpu")
    shifts = torch.cartesian_prod(*[torch.arange(step, device="cpu") for step in stride])
    return frequencies[:, None] + shifts.reshape(1, -1, len(stride)) * reduced


def symbols(
    weight: Tensor,
    sides: Shape,
    frequencies: Tensor,
    *,
    stride: Shape,
    dilation: Shape,
    padding: Shape,
    dtype: torch.dtype = torch.complex128,
) -> Tensor:
    """The symbol of a circular convolution at output frequencies.

    Args:
        weight: `(c_out, c_in, *kernel)`, one group.
        sides: Sides of the input torus, each divisible by its stride.
        frequencies: `(f, d)` integers, as `folded_frequencies` gives them.
        stride: One entry for each axis.
        dilation: One entry for each axis.
        padding: Padding at the low end; it shifts the phases only.
        dtype: Complex precision of the result.

    Returns:
        `(f, c_out, aliases * c_in)`, scaled so that the layer's singular values are those of
        the symbols.
    """
    c_out, c_in, *kernel = weight.shape
    waves = tap_waves(tuple(kernel), sides, frequencies, stride, dilation, padding)
    waves = waves.to(weight.device, dtype)
    taps_last = weight.reshape(c_out * c_in, -1)
    count = waves.shape[0] * waves.shape[1]
    flat = waves.reshape(count, -1)
    real, imaginary = (part @ taps_last.T.to(part.dtype) for part in (flat.real, flat.imag))
    symbol = torch.complex(real, imaginary).reshape(*waves.shape[:2], c_out, c_in)
    return symbol.transpose(1, 2).reshape(waves.shape[0], c_out, -1)


def tap_waves(
    kernel: Shape, sides: Shape, frequencies: Tensor, stride: Shape, dilation: Shape, padding: Shape
) -> Tensor:
    """What each tap contributes to the symbol at each frequency: `(f, aliases, taps)`.

    With a stride, divided by the square root of how many frequencies are folded together.
    """
    aliases = alias_frequencies(frequencies, sides, stride)
    phase = torch.zeros(*aliases.shape[:2], 1, dtype=torch.float64, device="cpu")
    for axis, (taps, side) in enumerate(zip(kernel, sides, strict=True)):
        offsets = torch.arange(taps, device="cpu") * dilation[axis] - padding[axis]
        # Integer arithmetic modulo the side keeps the phases exact to the last bit.
        turns = (aliases[..., axis, None] * offsets).remainder(side).double() / side
        phase = (phase[..., :, None] + turns[..., None, :]).flatten(-2)
    waves = torch.polar(torch.ones_like(phase), 2 * math.pi * phase)
    return waves / math.sqrt(math.prod(stride))


# --- The paper's closed forms -------------------------------------------------------------


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
