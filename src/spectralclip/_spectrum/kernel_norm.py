"""`kernel_norm`: the norm of the convolution with a kernel that comes as an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spectralclip._operators import KernelLayout, Padding, Sizes, kernel_operator, plain_numerics
from spectralclip._spectrum.svds import leading_spectrum, warned


@plain_numerics()
def kernel_norm(
    kernel: Any,
    in_shape: Sequence[int] | int,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    padding_mode: str = "zeros",
    dilation: Sizes = 1,
    groups: int = 1,
    layout: KernelLayout = "OIHW",
    tol: float = 1e-6,
) -> float:
    """The largest singular value of the convolution with a kernel, its Lipschitz constant.

    It is that of the layer, at this size of input and with this padding, not of the kernel as a
    matrix. For an interval that is certified to hold it, give what `kernel_operator` makes of the
    same arguments to `norm_bounds`.

    Args:
        kernel: A NumPy array, a tensor, or anything with `__array__` or `__dlpack__`, with zero to
            three spatial axes.
        in_shape: Shape of one input, channels first whatever the layout: `(channels, *sides)`.
        stride: One number, or one for each axis.
        padding: As for `kernel_operator`: numbers, pairs, "same" or "valid".
        padding_mode: "zeros", "circular", "reflect" or "replicate".
        dilation: One number, or one for each axis.
        groups: Into how many groups the channels fall.
        layout: "OIHW" for `(out, in / groups, *axes)` as in torch, "HWIO" for
            `(*axes, in / groups, out)` as in Keras and Flax; with any number of axes.
        tol: Relative accuracy. Computed in float64; it comes from below, as of `spectral_norm`.

    Warns:
        ConvergenceWarning: The tolerance was not reached.

    Raises:
        ValueError: The kernel does not fit the shape, or holds NaN or infinite values.

    Example:
        >>> import numpy as np
        >>> import spectralclip as sc
        >>> blur = np.full((1, 1, 3, 3), 1 / 9)
        >>> round(sc.kernel_norm(blur, (1, 32, 32), padding="same"), 4)
        0.994
        >>> round(sc.kernel_norm(blur, (1, 32, 32), padding="same", padding_mode="circular"), 4)
        1.0
    """
    op = kernel_operator(
        kernel,
        in_shape,
        stride=stride,
        padding=padding,
        padding_mode=padding_mode,
        dilation=dilation,
        groups=groups,
        layout=layout,
    )
    return float(warned(op, leading_spectrum(op, 1, tol=tol)).S[0])
