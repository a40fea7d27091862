"""`norm_bounds_all_sizes`: an interval around the supremum of a norm over all input sizes."""

from __future__ import annotations

import math

from torch import nn

from spectralclip._bounds.exact import listed_blocks, peak_with_margin
from spectralclip._bounds.interval import Interval
from spectralclip._bounds.norm_bounds import check_request, norm_bounds
from spectralclip._bounds.views import View
from spectralclip._common import Shape
from spectralclip._operators import (
    AnyBatchNorm,
    ConvMap,
    Layer,
    RunningShift,
    conv_paddings,
    describe,
    flattened,
    plain_numerics,
)
from spectralclip._spectrum import Torus, enough_points


@plain_numerics()
def norm_bounds_all_sizes(layer: Layer, *, tol: float = 0.01) -> Interval:
    """An interval that holds the supremum of a layer's norm over all input sizes.

    The upper end is deterministic, and holds at every size. The norm at a small size may lie below
    the lower end, which large images approach.

    Args:
        layer: A dense layer, a batch norm, or one convolution with zero padding (or circular
            padding that repeats no window), transposed or not, alone or with batch norms around it.
        tol: Relative width to stop at. With circular padding and a stride the interval is wider.

    Raises:
        ValueError: The layer is of another kind; `norm_bounds` bounds its norm at one size.

    Example:
        >>> import torch
        >>> from spectralclip import norm_bounds_all_sizes, spectral_norm
        >>> conv = torch.nn.Conv2d(8, 8, 3, padding=1)
        >>> interval = norm_bounds_all_sizes(conv)
        >>> interval.kind, bool(spectral_norm(conv, (8, 40, 40)) <= interval.upper)
        ('every size', True)
    """
    check_request(tol)
    shape = _probe_shape(layer)
    view = View(layer, shape)
    conv = view.convolution
    if conv is None:
        if listed_blocks(view.op) is None:
            raise _unknown(layer)
        return norm_bounds(layer, shape, tol=tol, deterministic=True)
    geometry = conv.geometry
    paddings = zip(geometry.before, geometry.after, conv.extent, strict=True)
    repeats = any(before + after >= extent for before, after, extent in paddings)
    circular = geometry.mode == "circular"
    if geometry.mode != "zeros" and (repeats or not circular):
        raise _unknown(layer)
    lower, upper = _supremum(conv, geometry.stride, tol)
    if circular and max(geometry.stride) > 1:
        # At sizes that the stride does not divide, the last window and the first are closer
        # than a stride: all that is left is that they are windows of stride one.
        upper = _supremum(conv, (1,) * len(geometry.stride), tol)[1]
    return Interval(lower, upper, "every size", 0.0)


def _unknown(layer: Layer) -> ValueError:
    return ValueError(
        "A bound at every input size is known for a dense layer, a batch norm, or one convolution "
        "with zero padding (or circular padding that repeats no window), alone or with batch norms "
        f"around it; got {describe(layer)}. Use norm_bounds(layer, in_shape) with the shape of one "
        "input, such as (3, 32, 32)."
    )


def _probe_shape(layer: Layer) -> Shape:
    """Some shape that the layer accepts."""
    parts = [part for _, part in flattened(layer)]
    convs = [part for part in parts if isinstance(part, nn.modules.conv._ConvNd)]
    norms = [part for part in parts if isinstance(part, (AnyBatchNorm, RunningShift))]
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    known = len(convs) + len(norms) + len(linears) == len(parts) > 0
    if not known or len(convs) + len(linears) > 1:
        raise _unknown(layer)
    names = ("in_channels", "in_features", "num_features")
    channels = next(getattr(parts[0], name) for name in names if hasattr(parts[0], name))
    if not convs:
        axes = {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}.get(type(parts[0]), 0)
        return (channels, *[1] * axes)
    conv = convs[0]
    reach = zip(conv.dilation, conv.kernel_size, conv_paddings(conv), strict=True)
    return (channels, *[2 * (d * (k - 1) + 1 + high) for d, k, (_, high) in reach])


def _supremum(conv: ConvMap, stride: Shape, tol: float) -> tuple[float, float]:
    """Bounds on the largest singular value of a convolution's symbol over all frequencies.

    The torus is so fine that a search of cells two frequencies wide suffices. A dilation d
    stretches frequencies and nothing else; what it shares with the stride cancels.
    """
    steps = tuple(s // math.gcd(s, d) for s, d in zip(stride, conv.geometry.dilation, strict=True))
    ones, excess = (1,) * len(steps), 0.99 * tol
    points = enough_points(Torus(conv, steps, steps, ones).degrees, excess)
    sides = tuple(s * 2 ** (1 + n.bit_length()) for s, n in zip(steps, points, strict=True))
    torus = Torus(conv, sides, steps, ones)
    return peak_with_margin(conv, torus, excess, everywhere=True)
