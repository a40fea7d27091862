"""`kernel_operator`: the convolution with a kernel that comes as an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spectralclip._common import Shape, as_shape
from spectralclip._linalg import wide
from spectralclip._operators.affine import AffineFunction, input_shape
from spectralclip._operators.arrays import as_tensor
from spectralclip._operators.contexts import plain_numerics
from spectralclip._operators.maps import ConvGeometry, ConvMap, DenseMap, LinearMap
from spectralclip._operators.operator import LinearOperator

Sizes: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | Sequence[int] | Sequence[tuple[int, int]] | Literal["same", "valid"]
KernelLayout: TypeAlias = Literal["OIHW", "HWIO"]

LAYOUTS = ("OIHW", "HWIO")
# As torch calls them, and what its function for padding calls them.
MODES = {
    "zeros": "constant",
    "circular": "circular",
    "reflect": "reflect",
    "replicate": "replicate",
}
_CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@plain_numerics()
def kernel_operator(
    kernel: Any,
    in_shape: Sequence[int] | int,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    padding_mode: str = "zeros",
    dilation: Sizes = 1,
    groups: int = 1,
    layout: KernelLayout = "OIHW",
) -> LinearOperator:
    """The convolution with a kernel, as an operator in float64 that `svds` and others take.

    The kernel slides as in torch, JAX and Keras, without being flipped. With no spatial axis it is
    a matrix, as of a dense layer. A transposed convolution has the singular values of the
    convolution that it transposes: give its kernel as that one's, and the shape of its *output* as
    `in_shape`.

    Args:
        kernel: A NumPy array, a tensor, or anything with `__array__` or `__dlpack__`, with zero to
            three spatial axes.
        in_shape: Shape of one input, channels first whatever the layout: `(channels, *sides)`.
        stride: One number, or one for each axis.
        padding: One number, one or a pair `(low, high)` for each axis, "valid" for none, or "same":
            as much as gives `ceil(side / stride)` outputs, the odd one at the high end, as Keras
            and JAX have it (and torch, which knows it for stride 1 alone).
        padding_mode: "zeros", "circular", "reflect" or "replicate".
        dilation: One number, or one for each axis.
        groups: Into how many groups the channels fall.
        layout: "OIHW" for `(out, in / groups, *axes)` as in torch, "HWIO" for
            `(*axes, in / groups, out)` as in Keras and Flax; with any number of axes.

    Raises:
        ValueError: The kernel does not fit the shape, or holds NaN or infinite values.

    Example:
        >>> import numpy as np
        >>> import spectralclip as sc
        >>> kernel = np.random.default_rng(0).standard_normal((3, 3, 16, 32))
        >>> op = sc.kernel_operator(kernel, (16, 15, 15), stride=2, padding="same", layout="HWIO")
        >>> op.out_shape, sc.svds(op, k=2).S.shape
        ((32, 8, 8), torch.Size([2]))
    """
    weight = _weight(kernel, layout)
    stride, padding, dilation, groups = map(_plain, (stride, padding, dilation, groups))
    name = f"the convolution with a kernel of shape {tuple(weight.shape)}"
    axes = weight.ndim - 2
    if axes == 0:
        name = f"the matrix of shape {tuple(weight.shape)}"
        others = (stride, padding, padding_mode, dilation, groups)
        if others != (1, 0, "zeros", 1, 1):
            raise ValueError(
                f"{name} has no axis to slide along: leave out stride, padding, dilation and "
                "groups."
            )
    shape = input_shape(_Named(name), in_shape)
    if axes == 0:
        _require_channels(name, shape[-1], weight.shape[1], 1)
        matrix = DenseMap(weight, shape[:-1])
        return _operator(name, lambda x: F.linear(x, weight), shape, matrix)
    if len(shape) != axes + 1:
        raise ValueError(
            f"in_shape of {name} must have {axes + 1} entries, channels first and without the "
            f"batch dimension, got {shape}."
        )
    geometry = _geometry(name, weight, shape, (stride, dilation), padding, padding_mode, groups)

    def convolve(x: Tensor) -> Tensor:
        ends = list(zip(geometry.before, geometry.after, strict=True))
        flat = [size for pair in reversed(ends) for size in pair]
        padded = F.pad(x, flat, mode=MODES[geometry.mode])
        options = {"stride": geometry.stride, "dilation": geometry.dilation}
        found: Tensor = _CONVOLUTIONS[axes](padded, weight, **options, groups=geometry.groups)
        return found

    conv = ConvMap(weight, geometry, shape, channels_last=False)
    return _operator(name, convolve, shape, conv)


class _Named:
    """A function under a name, for errors."""

    def __init__(self, name: str, apply: Any = None) -> None:
        self.__name__, self._apply = name, apply

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = self._apply(x)
        return found


def _operator(name: str, apply: Any, shape: Shape, linear: LinearMap) -> LinearOperator:
    assert linear.weight is not None
    dtype, device = linear.weight.dtype, linear.weight.device
    function = AffineFunction(_Named(name, apply), shape, dtype=dtype, device=device)
    return LinearOperator(function, [linear], transposed=False)


def _weight(kernel: Any, layout: str) -> Tensor:
    """The kernel in torch's order and in float64, finite."""
    if layout not in LAYOUTS:
        raise ValueError(
            f'layout must be "OIHW" (torch) or "HWIO" (Keras, Flax), for any number of axes, got '
            f"{layout!r}."
        )
    weight = wide(as_tensor(kernel, "kernel"))
    if not 2 <= weight.ndim <= 5 or weight.numel() == 0:
        raise ValueError(
            f"kernel must have two axes of channels and up to three in space, none of them empty, "
            f"got shape {tuple(weight.shape)}."
        )
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(
            "kernel holds NaN or infinite values: its norm is not defined. Restore finite weights."
        )
    if layout == "HWIO":
        weight = weight.movedim((-1, -2), (0, 1))
    return weight.contiguous()


def _require_channels(name: str, given: int, inputs: int, groups: int) -> None:
    if given != inputs * groups:
        raise ValueError(
            f"{name} with groups={groups} takes {inputs * groups} channels, in_shape has {given}. "
            'Is the layout right ("OIHW" as in torch, "HWIO" as in Keras), and in_shape channels '
            "first?"
        )


def _geometry(
    name: str,
    weight: Tensor,
    shape: Shape,
    steps: tuple[Sizes, Sizes],
    padding: Padding,
    mode: str,
    groups: int,
) -> ConvGeometry:
    stride, dilation = (
        _per_axis(one, weight.ndim - 2, what, least=1)
        for one, what in zip(steps, ("stride", "dilation"), strict=True)
    )
    if mode not in MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(MODES)}, got {mode!r}.")
    if not isinstance(groups, int) or groups < 1 or weight.shape[0] % groups:
        raise ValueError(
            f"groups must be a positive divisor of the {weight.shape[0]} output channels of "
            f"{name}, got {groups!r}."
        )
    _require_channels(name, shape[0], weight.shape[1], groups)
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    pads = _pads(padding, shape[1:], stride, extent)
    before, after = (tuple(end) for end in zip(*pads, strict=True))
    for side, low, high, size in zip(shape[1:], before, after, extent, strict=True):
        if side + low + high < size:
            raise ValueError(
                f"{name} reaches over {size} pixels, more than the {side + low + high} of in_shape "
                f"{shape} with its padding: give a larger input, or more padding."
            )
        # What torch and the explicit form of a convolution can both do.
        most = {"reflect": side - 1, "circular": side}.get(mode, max(low, high))
        if max(low, high) > most:
            raise ValueError(
                f"padding of {max(low, high)} by {mode!r} is more than the {most} that a side of "
                f"{side} has."
            )
    return ConvGeometry(stride, dilation, before, after, groups, mode)


def _plain(given: Any) -> Any:
    """NumPy's numbers and arrays as those of Python."""
    return given.tolist() if isinstance(given, (np.ndarray, np.generic)) else given


def _per_axis(sizes: Sizes, axes: int, what: str, least: int) -> Shape:
    try:
        found = as_shape(sizes)
    except TypeError as error:
        raise TypeError(f"{what} must be an integer or {axes} of them, got {sizes!r}.") from error
    found = found * axes if isinstance(sizes, int) else found
    if len(found) != axes or min(found) < least:
        raise ValueError(
            f"{what} must be an integer of at least {least}, or {axes} of them, got {sizes!r}."
        )
    return found


def _pads(
    padding: Padding, sides: Shape, stride: Shape, extent: Sequence[int]
) -> list[tuple[int, int]]:
    """What is added at the low and at the high end of each axis."""
    if padding == "valid":
        return [(0, 0)] * len(sides)
    if padding == "same":
        steps = zip(sides, stride, extent, strict=True)
        totals = [max((-(-n // s) - 1) * s + reach - n, 0) for n, s, reach in steps]
        return [(total // 2, total - total // 2) for total in totals]
    given: Any = padding  # not what its type says, where a caller checks no types
    if isinstance(given, str):
        raise ValueError(f'padding must be numbers, "same" or "valid", got {given!r}.')
    if isinstance(given, Sequence) and any(isinstance(one, Sequence) for one in given):
        pairs = all(isinstance(one, Sequence) and len(one) == 2 for one in given)
        if not pairs or len(given) != len(sides):
            raise ValueError(
                f"padding must have a pair (low, high) for each of {len(sides)} axes, got "
                f"{given!r}."
            )
        flat = [size for pair in given for size in pair]
        ends = _per_axis(flat, len(flat), "padding", least=0)
        return list(zip(ends[::2], ends[1::2], strict=True))
    return [(pad, pad) for pad in _per_axis(given, len(sides), "padding", least=0)]
