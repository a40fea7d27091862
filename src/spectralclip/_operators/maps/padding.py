"""How a convolution slides and pads, and the transposes of padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spectralclip._common import Shape


class ConvGeometry(NamedTuple):
    """How a kernel slides, one entry for each spatial axis."""

    stride: Shape
    dilation: Shape
    before: Shape  # padding at the low end
    after: Shape  # padding at the high end
    groups: int = 1
    mode: str = "zeros"

    @property
    def symmetric_zeros(self) -> bool:
        """Whether the convolution itself can do the padding."""
        return self.mode == "zeros" and self.before == self.after

    def read_positions(self, axis: int, n: int) -> Tensor:
        """Where on an axis each padded position is read from; zeros lie outside."""
        index = torch.arange(-self.before[axis], n + self.after[axis], device="cpu")
        if self.mode == "circular":
            return index.remainder(n)
        if self.mode == "replicate":
            return index.clamp(0, n - 1)
        if self.mode == "reflect":
            return (n - 1) - ((n - 1) - index.abs()).abs()
        return index


def pad_axes(x: Tensor, geometry: ConvGeometry) -> Tensor:
    """Pad the spatial axes of `(k, c, *space)`, keeping the order of the memory."""
    for axis, (before, after) in enumerate(zip(geometry.before, geometry.after, strict=True), 2):
        if before == after == 0:
            continue
        if geometry.mode == "zeros":
            low, high = (_zeros_along(x, axis, size) for size in (before, after))
            x = torch.cat([low, x, high], axis)
        else:
            index = geometry.read_positions(axis - 2, x.shape[axis])
            x = x.index_select(axis, index.to(x.device))
    return x


def _zeros_along(x: Tensor, axis: int, size: int) -> Tensor:
    return torch.zeros_like(x.narrow(axis, 0, 1)).expand(
        *x.shape[:axis], size, *x.shape[axis + 1 :]
    )


def fold_axes(x: Tensor, geometry: ConvGeometry, space: Shape) -> Tensor:
    """The transpose of `pad_axes`: add what lies in the padding to where it was read."""
    for axis, (before, after) in enumerate(zip(geometry.before, geometry.after, strict=True), 2):
        if before == after == 0:
            continue
        n = space[axis - 2]
        if geometry.mode == "zeros":
            x = x.narrow(axis, before, n)
            continue
        index = geometry.read_positions(axis - 2, n).to(x.device)
        if after < 0:  # on a torus smaller than the kernel's reach
            core = torch.zeros_like(x.narrow(axis, 0, 1)).repeat_interleave(n, axis)
            x = core.index_add_(axis, index, x)
            continue
        low, core, high = x.split([before, n, after], axis)
        x = core.clone()
        for end, places, part in ((0, index[:before], low), (-1, index[before + n :], high)):
            if geometry.mode == "replicate":  # all of them read one position
                x.select(axis, end).add_(part.sum(axis))
            else:
                x.index_add_(axis, places, part)
    return x
