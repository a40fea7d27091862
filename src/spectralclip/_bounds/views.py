"""A layer in two precisions and at smaller image sizes, each made where it is needed first.

A convolution on a large image is costly to apply, above all in float64, and bounds seldom need
that: its weight is the same on a small image, and with zero padding the layer on a smaller image
is a part of the layer itself, so that every lower bound on the one is a lower bound on the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch

from spectralclip._common import Shape
from spectralclip._operators import ConvMap, Layer, LinearOperator, as_operator, in_float64
from spectralclip._spectrum import enough_points, symbol_degrees


@final
class View:
    """A layer at an input size, in its own precision and in float64."""

    def __init__(self, layer: Layer | LinearOperator, in_shape: Sequence[int] | int | None) -> None:
        self._layer = layer
        self.op = as_operator(layer, in_shape)

    @cached_property
    def double(self) -> LinearOperator:
        """In float64 where that can be had, else as it is."""
        return in_float64(self.op, self._layer)

    @cached_property
    def convolution(self) -> ConvMap | None:
        """The one convolution that the layer is, its weight in float64 where that can be had."""
        conv = self.op.convolution
        if conv is None or self.op.dtype == torch.float64:
            return conv
        small = self._at(smaller_shape(self.op, conv, (1,) * (conv.weight.ndim - 2)))
        exact = (small or self).double.convolution
        weight = conv.weight if exact is None else exact.weight
        return ConvMap(weight, conv.geometry, conv.source.shape, channels_last=False)

    def cropped(self, excess: float) -> View | None:
        """The layer on a much smaller image, with nearly the same norm; None where there is none.

        With zero padding the norm grows with the image toward the supremum of the symbol's over
        all frequencies. On n pixels it falls short of that about as much as n equispaced
        frequencies do, which `excess` limits. On a torus whose sides divide those of the layer's
        there are fewer of the same frequencies. So neither has a larger norm than the layer.
        """
        conv = self.convolution
        if conv is None or not (conv.geometry.mode == "zeros" or conv.is_on_torus):
            return None
        return self._at(smaller_shape(self.op, conv, enough_points(symbol_degrees(conv), excess)))

    def is_large(self, excess: float) -> bool:
        """Whether a convolution has so many windows that its norm is the supremum's up to this."""
        conv = self.convolution
        if conv is None:
            return False
        points = enough_points(symbol_degrees(conv), excess)
        return all(n >= enough for n, enough in zip(conv.target.shape[1:], points, strict=True))

    def _at(self, in_shape: Shape | None) -> View | None:
        if in_shape is None or isinstance(self._layer, LinearOperator):
            return None
        small = View(self._layer, in_shape)
        own, other = self.op.convolution, small.op.convolution
        same = own is not None and other is not None and torch.equal(own.weight, other.weight)
        return small if same else None


def smaller_shape(op: LinearOperator, conv: ConvMap, windows: Shape) -> Shape | None:
    """An input shape with at least so many windows a side; None unless a fourth is left at most."""
    geometry = conv.geometry
    padding = [max(0, *both) for both in zip(geometry.before, geometry.after, strict=True)]
    axes = zip(windows, geometry.stride, conv.extent, padding, strict=True)
    if op.in_shape == conv.source.shape:
        sides = [count * stride + extent - 1 + pad for count, stride, extent, pad in axes]
    elif op.in_shape == conv.target.shape:  # a transposed convolution reads what the windows write
        sides = [count + 2 * pad // stride + 1 for count, stride, _, pad in axes]
    else:
        return None
    space = op.in_shape[1:]
    if geometry.mode == "circular":
        sides = [
            _divisor(n, s, side) for n, s, side in zip(space, geometry.stride, sides, strict=True)
        ]
    sides = list(map(min, sides, space))
    return (op.in_shape[0], *sides) if 4 * math.prod(sides) <= math.prod(space) else None


def _divisor(n: int, multiple: int, least: int) -> int:
    """The smallest divisor of n that is a multiple of another and at least so large; n if none."""
    return next((d for d in range(least, n) if n % d == 0 and d % multiple == 0), n)
