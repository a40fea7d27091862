"""Where a Lanczos run begins.

A random vector is the safe choice: it meets every singular vector. For zero-padded convolutions
on large images a better one costs little. Their leading singular vectors are nearly Fourier modes,
faded out at the borders. Where the symbol is cheap compared with the layer, the frequency at which
its norm is largest is looked for, and that mode is the start. Else a random vector on a small torus
is filtered there by a few products with `M^T M` and repeated over the whole image, which leaves
most of its weight on the leading part of the spectrum. Some plain noise is added, so that nothing
is out of reach.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spectralclip._linalg import sent
from spectralclip._operators import ConvMap, LinearMap, LinearOperator
from spectralclip._spectrum.symbol_peak import (
    Torus,
    enough_points,
    most_work,
    symbol_degrees,
    symbol_peak,
)


class StartConstants(NamedTuple):
    """What a start is steered by.

    Pairs of products are those for the norm to 1e-3, on average over 3x3 convolutions of 16, 32
    and 64 channels on 32, 24 and 16 pixels.
    """

    period: int = 8  # side of the small torus; images of at least twice that are worth it
    # Products with `M^T M` there: 28 pairs, 31 without any, 26 with twice as many.
    filter_steps: int = 16
    # Share of plain noise: 27.5 pairs with 0.1, 28.5 with 1. It reaches what the torus has not.
    noise: float = 0.3
    # How far below its largest value the symbol's norm may be at the start.
    off_the_peak: float = 5e-4
    # Products with the layer that the search for it may cost: it saves 50 to 130 (one to sixteen
    # channels, 224 to 512 pixels a side).
    peak_products: int = 20


START = StartConstants()


def random_rows(op: LinearOperator, count: int, generator: torch.Generator) -> Tensor:
    """Gaussian rows on the operator's input side."""
    return gaussian(op, count, op.shape[1], generator)


def gaussian(op: LinearOperator, count: int, size: int, generator: torch.Generator) -> Tensor:
    """Gaussian rows in the operator's precision, drawn where the generator lives."""
    place = generator.device
    rows = torch.randn(count, size, generator=generator, dtype=op.dtype, device=place)
    return rows.to(op.device)


def filtered_row(op: LinearOperator, generator: torch.Generator) -> Tensor:
    """One start row: a Fourier mode where the layer allows it, else random."""
    noise = random_rows(op, 1, generator)
    map_ = op.maps[0]
    torus = torus_map(map_) if len(op.maps) == 1 else None
    if torus is None:
        return noise
    mode = _leading_mode(map_)
    if mode is None:
        mode = _tiled(torus, map_, op, generator)
    for axis, size in enumerate(map_.source.shape[1:], 2):
        position = torch.arange(1, size + 1, device=op.device, dtype=op.dtype)
        window = torch.sin(math.pi * position / (size + 1))
        mode = mode * window.reshape(-1, *[1] * (mode.ndim - 1 - axis))
    start = map_.source.to_rows(mode)
    mixed: Tensor = start / start.norm().clamp_min(1e-30) + START.noise * noise / noise.norm()
    return mixed


def _tiled(
    torus: LinearMap, map_: LinearMap, op: LinearOperator, generator: torch.Generator
) -> Tensor:
    """A filtered vector on a small torus, repeated over the image."""
    small = torus.source
    row = gaussian(op, 1, small.size, generator)
    for _ in range(START.filter_steps):
        row = torus.adjoint(torus.forward(row))
        row = row / row.norm().clamp_min(torch.finfo(row.dtype).tiny)
    mode = small.to_tensor(row)
    for axis, size in enumerate(map_.source.shape[1:], 2):
        mode = torch.cat([mode] * math.ceil(size / mode.shape[axis]), axis).narrow(axis, 0, size)
    return mode


def _leading_mode(map_: LinearMap) -> Tensor | None:
    """The Fourier mode at which the symbol's norm is largest; None where that is dear to find."""
    conv = map_.convolution
    assert conv is not None
    if most_work(conv, START.off_the_peak) > START.peak_products * conv.work:
        return None
    stride, dilation = conv.geometry.stride, conv.geometry.dilation
    points = enough_points(symbol_degrees(conv), START.off_the_peak)
    sides = tuple(s * 2 ** (1 + n.bit_length()) for n, s in zip(points, stride, strict=True))
    torus = Torus(conv, sides, stride, dilation)
    peak = symbol_peak(torus, START.off_the_peak)
    space = map_.source.shape[1:]
    image = torus.leading_mode(peak, space, outputs=map_.is_transposed)
    mode = torch.zeros(map_.source.shape, dtype=conv.weight.dtype, device=conv.weight.device)
    channels = image.shape[0]
    mode[peak.group * channels : (peak.group + 1) * channels] = sent(image, mode.device, mode.dtype)
    return mode[None]


def has_fourier_modes(op: LinearOperator) -> bool:
    """Whether leading vectors are nearly Fourier modes: reflected corners have isolated ones."""
    conv = op.maps[0].convolution if len(op.maps) == 1 else None
    return conv is not None and conv.geometry.mode in ("zeros", "circular")


def torus_map(map_: LinearMap) -> LinearMap | None:
    """The same kernel on a small torus, or None where that would not be much smaller."""
    conv = map_.convolution
    # Reflected and replicated borders have leading vectors of their own; and on a torus, modes of a
    # shorter period would never mix with the others.
    if conv is None or conv.geometry.mode != "zeros":
        return None
    geometry, space = conv.geometry, conv.source.shape[1:]
    sides = []
    for size, stride in zip(space, geometry.stride, strict=True):
        period = stride * math.ceil(START.period / stride)
        sides.append(period if size >= 2 * START.period else size - size % stride)
    if min(sides) < 1 or 4 * math.prod(sides) > math.prod(space):
        return None
    # On a torus of side a stride divides, there are side / stride windows.
    axes = zip(conv.extent, geometry.stride, geometry.before, strict=True)
    after = tuple(extent - stride - before for extent, stride, before in axes)
    wrapped = geometry._replace(after=after, mode="circular")
    shape = (conv.source.shape[0], *sides)
    torus = ConvMap(conv.weight, wrapped, shape, channels_last=conv.source.channels_last)
    return torus.transpose() if map_.is_transposed else torus
