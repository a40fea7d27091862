"""Max pooling: how many windows share an entry.

A maximum moves by no more than the entry of its window that moves most. Summed over the windows,
the square of each entry's move counts once for each window that holds it, so that the Lipschitz
constant is at most the square root of the largest overlap; it is attained by a peak in the middle
of all windows that share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectralclip._common import Shape
from spectralclip._lipschitz.flow import Node


def overlap(kernel: int, stride: int, dilation: int, windows: int) -> int:
    """Most windows on one axis that share an entry.

    Window i reads `i * stride + j * dilation` for j below `kernel`. Those that read one entry have
    j a multiple of `stride / g` apart, and i a multiple of `dilation / g`, where g is what stride
    and dilation have in common.
    """
    common = math.gcd(stride, dilation)
    taps, places = stride // common, dilation // common
    return min(-(-kernel // taps), -(-windows // places))


def adaptive_overlap(source: int, target: int) -> int:
    """The same where window i reads from `floor(i n / m)` up to `ceil((i + 1) n / m)`."""
    counts = [0] * source
    for i in range(target):
        for entry in range(i * source // target, -(-(i + 1) * source // target)):
            counts[entry] += 1
    return max(counts)


def max_pool_factor(node: Node, source: Shape) -> tuple[float, str]:
    """The Lipschitz constant of a max pooling as torch's operations describe it."""
    axes = _axes(node)
    kernel = _each(node.argument("kernel_size"), axes)
    stride = _each(node.argument("stride") or kernel, axes)
    dilation = _each(node.argument("dilation", 1), axes)
    windows = node.shape[-axes:]
    sizes = zip(kernel, stride, dilation, windows, strict=True)
    return _shared(math.prod(overlap(*axis) for axis in sizes))


def adaptive_max_pool_factor(node: Node, source: Shape) -> tuple[float, str]:
    """The same for adaptive pooling of a tensor of shape `source`."""
    axes = _axes(node)
    sides = zip(source[-axes:], node.shape[-axes:], strict=True)
    return _shared(math.prod(adaptive_overlap(*side) for side in sides))


def _shared(windows: int) -> tuple[float, str]:
    return math.sqrt(windows), f"an entry is in up to {windows} windows"


def _axes(node: Node) -> int:
    """How many axes are pooled, which is in the operation's name."""
    return int(next(sign for sign in node.operation if sign.isdigit()))


def _each(sizes: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """One size for each axis."""
    values = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return values * axes if len(values) == 1 else values
