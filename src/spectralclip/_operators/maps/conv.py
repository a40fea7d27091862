"""Convolutions of every kind."""

from __future__ import annotations

import itertools
import math
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import on_host
from spectralclip._operators.blocks import BlockForm, CircularBlocks, RepeatedBlocks
from spectralclip._operators.maps.base import Layout, LinearMap, geometric_mean_of_sums
from spectralclip._operators.maps.padding import ConvGeometry, fold_axes, pad_axes

_PRODUCTS: dict[int, tuple[Any, Any]] = {
    1: (F.conv1d, F.conv_transpose1d),
    2: (F.conv2d, F.conv_transpose2d),
    3: (F.conv3d, F.conv_transpose3d),
}
WINDOWS = 2**14  # that are looked at together: a sequence may have millions


@final
class ConvMap(LinearMap):
    """A convolution of any dimension, stride, dilation, padding and grouping."""

    weight: Tensor

    def __init__(
        self, weight: Tensor, geometry: ConvGeometry, in_shape: Shape, *, channels_last: bool
    ) -> None:
        self.weight, self.geometry = weight, geometry
        self.channel_groups = geometry.groups
        paddings = zip(in_shape[1:], geometry.before, geometry.after, self.extent, strict=True)
        free = [n + before + after - extent for n, before, after, extent in paddings]
        counts = [room // s + 1 for room, s in zip(free, geometry.stride, strict=True)]
        # What a stride leaves over at the high end: the transpose has to make it again.
        over = [room % s for room, s in zip(free, geometry.stride, strict=True)]
        self.source = Layout(in_shape, channels_last)
        self.target = Layout((weight.shape[0], *counts), channels_last)
        self._axes = len(counts)
        # A sequence is an image of height one, so that it has a channels-last form too.
        self._lift = 1 if channels_last and self._axes == 1 else 0
        self._kernel = weight.unsqueeze(2) if self._lift else weight
        if channels_last:
            self._kernel = self._kernel.contiguous(memory_format=torch.channels_last)
        pad, one = (0,) * self._lift, (1,) * self._lift
        inner = geometry.before if geometry.symmetric_zeros else (0,) * self._axes
        self._slide: dict[str, Any] = {
            "stride": one + geometry.stride,
            "padding": pad + inner,
            "dilation": one + geometry.dilation,
            "groups": geometry.groups,
        }
        self._conv, self._conv_transpose = _PRODUCTS[self._axes + self._lift]
        self._output_padding = pad + tuple(over)

    def with_weight(self, weight: Tensor) -> ConvMap:
        last = self.source.channels_last
        return ConvMap(weight, self.geometry, self.source.shape, channels_last=last)

    def scaled(self, outputs: Tensor | None, inputs: Tensor | None) -> ConvMap:
        weight = self.weight
        if outputs is not None:
            weight = weight * outputs.reshape(-1, 1, *[1] * self._axes)
        if inputs is not None:
            groups = self.geometry.groups
            each = inputs.reshape(groups, 1, -1, *[1] * self._axes)
            grouped = weight.reshape(groups, -1, *weight.shape[1:])
            weight = (grouped * each).reshape(weight.shape)
        return self.with_weight(weight)

    @property
    def convolution(self) -> ConvMap | None:
        return self

    def forward(self, rows: Tensor) -> Tensor:
        x = self.source.to_tensor(rows)
        if not self.geometry.symmetric_zeros:
            x = pad_axes(x, self.geometry)
        if self._lift:
            x = x.unsqueeze(2)
        y = self._conv(x, self._kernel, **self._slide)
        return self.target.to_rows(y.squeeze(2) if self._lift else y)

    def adjoint(self, rows: Tensor) -> Tensor:
        y = self.target.to_tensor(rows)
        if self._lift:
            y = y.unsqueeze(2)
        x = self._conv_transpose(
            y, self._kernel, output_padding=self._output_padding, **self._slide
        )
        if self._lift:
            x = x.squeeze(2)
        if not self.geometry.symmetric_zeros:
            x = fold_axes(x, self.geometry, self.source.shape[1:])
        return self.source.to_rows(x)

    def weight_gradients(self, U: Tensor, V: Tensor) -> Tensor:
        """Tap by tap: the correlation of the outputs with the inputs that the tap reads."""
        geometry, kernel = self.geometry, tuple(self.weight.shape[2:])
        outputs = self.target.to_tensor(U)
        inputs = pad_axes(self.source.to_tensor(V), geometry)
        count, groups = outputs.shape[0], geometry.groups
        left = outputs.reshape(count, groups, outputs.shape[1] // groups, -1)
        taps = []
        for tap in itertools.product(*map(range, kernel)):
            read = inputs
            for axis, place in enumerate(tap):
                first, step = place * geometry.dilation[axis], geometry.stride[axis]
                last = first + step * (outputs.shape[2 + axis] - 1) + 1
                read = read[(slice(None),) * (2 + axis) + (slice(first, last, step),)]
            right = read.reshape(count, groups, inputs.shape[1] // groups, -1)
            taps.append(left @ right.mT)
        return torch.stack(taps, -1).reshape(count, *self.weight.shape)

    # --- What a convolution knows of itself ---

    @property
    def extent(self) -> Shape:
        """How many positions a window spans on each axis."""
        axes = zip(self.geometry.dilation, self.weight.shape[2:], strict=True)
        return tuple(d * (k - 1) + 1 for d, k in axes)

    @property
    def has_separate_windows(self) -> bool:
        """Whether no two windows read the same position, as for 1x1 and kernel = stride."""
        geometry = self.geometry
        if any(geometry.before) or any(geometry.after):
            return False
        axes = zip(self.target.shape[1:], geometry.stride, self.extent, strict=True)
        return all(count == 1 or stride >= extent for count, stride, extent in axes)

    @property
    def is_on_torus(self) -> bool:
        """Whether the convolution is circular, with a stride that divides the image."""
        sides = zip(self.target.shape[1:], self.geometry.stride, strict=True)
        whole = tuple(count * stride for count, stride in sides)
        return self.geometry.mode == "circular" and whole == self.source.shape[1:]

    @property
    def work(self) -> float:
        """Multiplications of one application."""
        return float(self.weight.numel() * math.prod(self.target.shape[1:]))

    def block_form(self) -> BlockForm | None:
        if self.has_separate_windows:
            return RepeatedBlocks(self, self.geometry.groups, math.prod(self.target.shape[1:]))
        return CircularBlocks(self) if self.is_on_torus else None

    def tap_gram(self) -> Tensor:
        """`D[t, t']`: how many windows read the same position by the taps t and t'.

        `||M(W)||_F^2` is the sum of `D[t, t'] <W_t, W_t'>`. Windows are products over the axes, and
        so is D. In float64 on the CPU.
        """
        gram = torch.ones(1, 1, dtype=torch.float64, device="cpu")
        for axis in range(self._axes):
            read, inside = self.reads(axis)
            counts = torch.zeros(read.shape[1], read.shape[1], dtype=torch.float64, device="cpu")
            for at, is_one in zip(read.split(WINDOWS), inside.split(WINDOWS), strict=True):
                same = at[:, :, None] == at[:, None, :]
                counts += (same & is_one[:, :, None] & is_one[:, None, :]).sum(0)
            gram = torch.kron(gram, counts)
        return gram

    def frobenius_sq(self) -> float | None:
        gram = self.tap_gram()
        taps = on_host(self.weight).reshape(-1, gram.shape[0])
        return max(0.0, float(torch.sum((taps @ gram) * taps)))

    def reach(self, axis: int) -> Tensor:
        if axis == 0 or axis >= len(self.source.shape):
            return super().reach(axis)
        read, inside = self.reads(axis - 1)
        windows = torch.arange(len(read), device="cpu")[:, None].expand_as(read)
        reach = torch.zeros(len(read), self.source.shape[axis], dtype=torch.bool, device="cpu")
        reach[windows[inside], read[inside]] = True
        return reach

    def reads(self, axis: int) -> tuple[Tensor, Tensor]:
        """For each window and tap of a spatial axis, which position is read, and if it is one."""
        geometry, size = self.geometry, self.source.shape[1 + axis]
        windows = torch.arange(self.target.shape[1 + axis], device="cpu")[:, None]
        taps = torch.arange(self.weight.shape[2 + axis], device="cpu")
        padded = windows * geometry.stride[axis] + taps * geometry.dilation[axis]
        read = geometry.read_positions(axis, size)[padded]
        return read, (read >= 0) & (read < size)

    def absolute_norm(self, device: torch.device) -> float:
        sizes = self.with_weight(self.weight.abs())
        ones = [self.weight.new_ones(1, layout.size) for layout in (self.source, self.target)]
        return geometric_mean_of_sums(sizes.forward(ones[0]), sizes.adjoint(ones[1]))

    @property
    def rounding_terms(self) -> float:
        padding = zip(self.geometry.before, self.geometry.after, strict=True)
        folds = math.prod(1 + abs(before) + abs(after) for before, after in padding)
        return float(self.weight[0].numel() + self.weight[:, 0].numel() * folds)
