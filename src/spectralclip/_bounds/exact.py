"""The largest singular value of layers that are many small matrices, and of tori around others.

A block diagonal layer has the norm of its largest block, which is found to rounding: such a bound
is exact. A convolution on a torus is one of these, a block for each frequency. Zero
padding spoils that, but a zero-padded convolution is a part of a circular one on a torus that is
a little larger, whose norm bounds it from above without an iteration.

What is proved by floating point is proved up to rounding, so each value has its margin here too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from spectralclip._common import Shape
from spectralclip._linalg import largest_singular_value
from spectralclip._operators import BlockForm, ConvMap, LinearOperator
from spectralclip._spectrum import Torus, symbol_peak


class ExactConstants(NamedTuple):
    """When small matrices are decomposed."""

    # Multiply-adds that need no second thought. One matrix of 1259 rows and columns takes as many:
    # 0.5 s of one core, where a Lanczos run takes 0.1 s.
    cheap: float = 2e10
    runs: float = 4.0  # as many as so many Lanczos runs take are spent in any case
    # Smaller sides up to which the whole matrix is formed: as many products as a Lanczos run takes.
    dense_side: int = 64
    dense_side_deterministic: int = 1024  # where only a proof will do: eigenvalues take 0.15 s
    dense_entries: int = 2**25  # numbers that this matrix may have: a quarter of a gigabyte


EXACT = ExactConstants()


def listed_blocks(op: LinearOperator) -> BlockForm | None:
    """The few blocks of an operator or its transpose; those of a circular one are a `Torus`."""
    conv = op.convolution
    if conv is not None:
        return conv.block_form() if conv.has_separate_windows else None
    return op.block_form()


def largest_value(form: BlockForm) -> float:
    rows, columns = form.block_shape
    count, chunk = form.copies.shape[0], max(1, 2**22 // (rows * columns))
    best = 0.0
    for start in range(0, count, chunk):
        best = largest_singular_value(form.blocks(slice(start, min(start + chunk, count))), best)
    return best


def rounding(dtype: torch.dtype, block_shape: tuple[int, int], taps: int = 1) -> float:
    """Relative margin for the largest value of blocks whose entries are known in a precision.

    Entries that carry a relative error u make an error of `u ||B||_F <= u sqrt(r) ||B||` in a
    block of rank r; a symbol sums T taps, which turns u into `T^(3/2) u` at most. A Cholesky
    factor that exists in floating point proves the bound up to `r (r + 1)` roundings.
    """
    rank = min(block_shape)
    entries = 4 * torch.finfo(dtype).eps * math.sqrt(rank * taps) * taps
    return entries + 4 * rank * (rank + 9) * torch.finfo(torch.float64).eps + 1e-9


def affordable(blocks: BlockForm | Torus) -> bool:
    """Whether decomposing all blocks costs no more than a few Lanczos runs on the layer would."""
    rows, columns = blocks.block_shape
    once = float(rows * columns)  # copies of a block need no product of their own
    if isinstance(blocks, Torus):
        count, application = blocks.count, blocks.application_work
    else:
        count = blocks.copies.shape[0]
        application = count * once
    work = 10.0 * count * once * min(rows, columns)
    return work <= max(EXACT.cheap, EXACT.runs * 240 * application)


def peak_with_margin(
    conv: ConvMap, torus: Torus, excess: float, *, everywhere: bool = False, known: float = 0.0
) -> tuple[float, float]:
    """A lower and an upper bound on the largest value on a torus, as `symbol_peak` finds them."""
    found = symbol_peak(torus, excess, everywhere=everywhere, known=known)
    margin = rounding(conv.weight.dtype, torus.block_shape, math.prod(conv.weight.shape[2:]))
    return found.value * (1 - margin), found.upper * (1 + margin)


def torus_norm(conv: ConvMap, excess: float) -> float | None:
    """At least the norm of a convolution with zero or circular padding, by a torus; else None.

    The norm on the torus is at most `excess` less, relatively.
    """
    torus = circular_torus(conv) or embedding_torus(conv)
    return None if torus is None else peak_with_margin(conv, torus, excess)[1]


def circular_torus(conv: ConvMap) -> Torus | None:
    """The torus that a circular convolution lives on; None for others."""
    if not conv.is_on_torus:
        return None
    return Torus(conv, conv.source.shape[1:], conv.geometry.stride, conv.geometry.dilation)


def embedding_torus(conv: ConvMap) -> Torus | None:
    """A torus on which a zero-padded convolution is a part of a circular one; None for others."""
    if conv.geometry.mode != "zeros":
        return None
    return Torus(conv, embedding_sides(conv), conv.geometry.stride, conv.geometry.dilation)


def embedding_sides(conv: ConvMap) -> Shape:
    """Sides of the smallest torus on which a zero-padded convolution is a part of a circular one.

    Beyond the n pixels, windows read padding at both ends. On the torus both ends may fall on
    the same zeros, so the longer one counts; windows that see nothing but padding do not. A
    window reaches `dilation * (kernel - 1)` further than its first tap.
    """
    sides, geometry = [], conv.geometry
    shapes = conv.source.shape[1:], conv.target.shape[1:]
    axes = zip(*shapes, geometry.stride, geometry.before, conv.extent, strict=True)
    for n, windows, stride, before, extent in axes:
        reach = extent - 1
        after = (windows - 1) * stride - before + reach - (n - 1)
        padding = max(0, min(before, reach), min(after, reach))
        sides.append(stride * math.ceil((n + padding) / stride))
    return tuple(sides)
