"""Linear maps on flat batches: how `M` and its transpose are applied.

Maps act on matrices `(k, n)` whose rows are vectors in the layout that the map likes: for
convolutions on a CPU that is channels-last, which up to halves the time of an application.
`Layout` says how a row is read as a tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._operators.affine import AffineFunction

Adjoint = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True)
class Layout:
    """How a flat row is read as a tensor: channels first (as in torch), or last."""

    shape: Shape
    channels_last: bool = False

    def to_tensor(self, rows: Tensor) -> Tensor:
        """`(k, n)` rows as a view of shape `(k, *shape)`."""
        if not self.channels_last:
            return rows.reshape(-1, *self.shape)
        channels, *space = self.shape
        return rows.reshape(-1, *space, channels).movedim(-1, 1)

    def to_rows(self, x: Tensor) -> Tensor:
        """A batch `(k, *shape)` as rows; a view where the memory is in this order already."""
        return (x.movedim(1, -1) if self.channels_last else x).reshape(x.shape[0], self.size)

    @property
    def size(self) -> int:
        """Length of a row."""
        return math.prod(self.shape)

    def converted(self, rows: Tensor, other: Layout) -> Tensor:
        """Rows of this layout as rows of another one."""
        if self.channels_last == other.channels_last:
            return rows
        return other.to_rows(self.to_tensor(rows))


class LinearMap(ABC):
    """A linear map on rows, with its transpose."""

    source: Layout
    target: Layout

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """`M x` for each row x."""

    @abstractmethod
    def adjoint(self, rows: Tensor) -> Tensor:
        """`M^T y` for each row y."""

    @abstractmethod
    def linearize(self, rows: Tensor) -> tuple[Tensor, Adjoint]:
        """`M x`, and an adjoint that may reuse what that computed."""


class ExplicitMap(LinearMap):
    """A map whose two directions share nothing."""

    def linearize(self, rows: Tensor) -> tuple[Tensor, Adjoint]:
        """`M x`, and the adjoint."""
        return self.forward(rows), self.adjoint


@final
class AutogradMap(LinearMap):
    """Some stages of an affine function, through their own forward and backward."""

    def __init__(self, function: AffineFunction, start: int, stop: int) -> None:
        self._function, self._start, self._stop = function, start, stop
        self._gain = function.gain
        self.source = Layout(function.shapes[start])
        self.target = Layout(function.shapes[stop])
        zero = torch.zeros(1, *self.source.shape, dtype=function.dtype, device=function.device)
        with torch.no_grad():
            at_zero = self._evaluate(zero)
        self._at_zero = at_zero if bool(at_zero.any()) else None
        self._graph: tuple[Tensor, Tensor] | None = None
        self._require_adjoint()

    def _require_adjoint(self) -> None:
        """Raise unless the backward pass is the transpose of the forward pass."""
        function, generator = self._function, torch.Generator("cpu").manual_seed(1)
        x, y = (
            torch.randn(1, layout.size, generator=generator, device="cpu").to(
                function.device, function.dtype
            )
            for layout in (self.source, self.target)
        )
        image, adjoint = self.linearize(x)
        # In float64, since squares of extreme weights leave the range of float32.
        x, y, image, back = (row.cpu().double() for row in (x, y, image, adjoint(y)))
        forward, backward = torch.sum(image * y), torch.sum(x * back)
        size = image.norm() * y.norm() + x.norm() * back.norm()
        if float((forward - backward).abs()) > 1e-3 * float(size):
            raise ValueError(
                f"The backward pass of {function.name} is not the transpose of its forward pass: "
                "it is cut off or changed somewhere, as by torch.no_grad() or .detach() inside. "
                "Let gradients reach the input."
            )

    def _evaluate(self, x: Tensor) -> Tensor:
        return self._function.part(self._start, self._stop, x)

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.source.to_tensor(rows) * self._gain  # new memory: a layer may work in place
            return self._linear_part(self._evaluate(x))

    def adjoint(self, rows: Tensor) -> Tensor:
        # A linear map's backward does not depend on where it was taken: one graph serves all
        # calls with the same number of rows.
        if self._graph is None or self._graph[0].shape[0] != rows.shape[0]:
            zeros = torch.zeros_like(rows[:, :1]).expand(-1, self.source.size)
            self._graph = self._record(zeros)
        x, y = self._graph
        return self._backward(x, y, rows, keep=True)

    def linearize(self, rows: Tensor) -> tuple[Tensor, Adjoint]:
        x, y = self._record(rows if self._gain == 1 else rows * self._gain)
        return self._linear_part(y.detach()), lambda rows: self._backward(x, y, rows, keep=False)

    def _linear_part(self, y: Tensor) -> Tensor:
        # A pass over a wide batch takes a good part of the time of the layer itself.
        y = y if self._at_zero is None else y - self._at_zero
        return self.target.to_rows(y if self._gain == 1 else y / self._gain)

    def _record(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = self.source.to_tensor(rows).detach().requires_grad_()
            return x, self._evaluate(x.clone())  # a layer may work in place

    def _backward(self, x: Tensor, y: Tensor, rows: Tensor, keep: bool) -> Tensor:
        if not y.requires_grad:  # A constant function: no path leads back to x.
            return self.source.to_rows(torch.zeros_like(x))
        (gradient,) = torch.autograd.grad(
            y, x, self.target.to_tensor(rows), retain_graph=keep, materialize_grads=True
        )
        return self.source.to_rows(gradient)


@final
class IdentityMap(ExplicitMap):
    """Reshaping, dropout in evaluation, and everything else that changes no number."""

    def __init__(self, source: Shape, target: Shape, channels_last: bool) -> None:
        keep = channels_last and source == target
        self.source, self.target = Layout(source, keep), Layout(target, keep)

    def forward(self, rows: Tensor) -> Tensor:
        return rows.clone()  # callers may write into what they get

    def adjoint(self, rows: Tensor) -> Tensor:
        return rows.clone()


@final
class ScalarMap(ExplicitMap):
    """One factor for all."""

    def __init__(self, factor: float, layout: Layout) -> None:
        self.factor = factor
        self.source = self.target = layout

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.factor

    adjoint = forward


@final
class DiagonalMap(ExplicitMap):
    """One factor a channel: batch norm with its running statistics."""

    def __init__(self, factors: Tensor, shape: Shape, channels_last: bool) -> None:
        self.factors = factors
        self.source = self.target = Layout(shape, channels_last)
        repeats = math.prod(shape[1:])
        self._row = factors.repeat(repeats) if channels_last else factors.repeat_interleave(repeats)

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self._row

    adjoint = forward


@final
class DenseMap(ExplicitMap):
    """A matrix on the last axis, for each position of the leading axes."""

    def __init__(self, weight: Tensor, leading: Shape = ()) -> None:
        self.weight, self.leading = weight, leading
        self.source = Layout((*leading, weight.shape[1]))
        self.target = Layout((*leading, weight.shape[0]))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows.reshape(-1, self.weight.shape[1]) @ self.weight.T).reshape(
            rows.shape[0], self.target.size
        )

    def adjoint(self, rows: Tensor) -> Tensor:
        return (rows.reshape(-1, self.weight.shape[0]) @ self.weight).reshape(
            rows.shape[0], self.source.size
        )


@final
@dataclass(frozen=True)
class ConvGeometry:
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


@final
class ConvMap(ExplicitMap):
    """A convolution of any dimension, stride, dilation, padding and grouping."""

    def __init__(
        self, weight: Tensor, geometry: ConvGeometry, in_shape: Shape, *, channels_last: bool
    ) -> None:
        self.weight, self.geometry = weight, geometry
        kernel, space = weight.shape[2:], in_shape[1:]
        padded = [n + a + b for n, a, b in zip(space, geometry.before, geometry.after, strict=True)]
        extent = [d * (k - 1) + 1 for d, k in zip(geometry.dilation, kernel, strict=True)]
        counts = [(n - e) // s + 1 for n, e, s in zip(padded, extent, geometry.stride, strict=True)]
        # What a stride leaves over at the high end: the transpose has to make it again.
        self._left_over = [
            (n - e) % s for n, e, s in zip(padded, extent, geometry.stride, strict=True)
        ]
        self.source = Layout(in_shape, channels_last)
        self.target = Layout((weight.shape[0], *counts), channels_last)
        self._axes = len(kernel)
        # A sequence is an image of height one, so that it has a channels-last form too.
        self._lift = 1 if channels_last and self._axes == 1 else 0
        lifted = weight.unsqueeze(2) if self._lift else weight
        if channels_last:
            lifted = lifted.contiguous(memory_format=torch.channels_last)
        self._kernel = lifted
        pad = (0,) * self._lift
        one = (1,) * self._lift
        inner = geometry.before if geometry.symmetric_zeros else (0,) * self._axes
        self._slide: dict[str, Any] = {
            "stride": one + geometry.stride,
            "padding": pad + inner,
            "dilation": one + geometry.dilation,
            "groups": geometry.groups,
        }
        axes = self._axes + self._lift
        self._conv = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
        self._conv_transpose = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[
            axes - 1
        ]
        self._output_padding = pad + tuple(self._left_over)

    def scaled(self, rows: Tensor | None = None, columns: Tensor | None = None) -> ConvMap:
        """The convolution after scaling its output (`rows`) or input (`columns`) channels."""
        weight = self.weight
        if rows is not None:
            weight = weight * rows.reshape(-1, 1, *[1] * self._axes)
        if columns is not None:
            groups = self.geometry.groups
            each = columns.reshape(groups, 1, -1, *[1] * self._axes)
            grouped = weight.reshape(groups, -1, *weight.shape[1:])
            weight = (grouped * each).reshape(weight.shape)
        return ConvMap(
            weight,
            self.geometry,
            self.source.shape,
            channels_last=self.source.channels_last,
        )

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


def pad_axes(x: Tensor, geometry: ConvGeometry) -> Tensor:
    """Pad the spatial axes of `(k, c, *space)`, keeping the order of the memory."""
    for axis, (before, after) in enumerate(zip(geometry.before, geometry.after, strict=True), 2):
        if before == after == 0:
            continue
        if geometry.mode == "zeros":
            low, high = (_zeros_along(x, axis, size) for size in (before, after))
            x = torch.cat([low, x, high], axis)
        else:
            index = read_positions(geometry.mode, before, x.shape[axis], after)
            x = x.index_select(axis, index.to(x.device))
    return x


def _zeros_along(x: Tensor, axis: int, size: int) -> Tensor:
    return torch.zeros_like(x.narrow(axis, 0, 1)).expand(
        *x.shape[:axis], size, *x.shape[axis + 1 :]
    )


def read_positions(mode: str, before: int, n: int, after: int) -> Tensor:
    """For each position of the padded axis, where in the axis its value comes from."""
    index = torch.arange(-before, n + after, device="cpu")
    if mode == "circular":
        return index.remainder(n)
    if mode == "replicate":
        return index.clamp(0, n - 1)
    return (n - 1) - ((n - 1) - index.abs()).abs()  # reflect


def fold_axes(x: Tensor, geometry: ConvGeometry, space: Shape) -> Tensor:
    """The transpose of `pad_axes`: add what lies in the padding to where it was read."""
    for axis, (before, after) in enumerate(zip(geometry.before, geometry.after, strict=True), 2):
        if before == after == 0:
            continue
        n = space[axis - 2]
        if geometry.mode == "zeros":
            x = x.narrow(axis, before, n)
            continue
        if after < 0 or max(before, after) > n:  # on a torus smaller than the kernel's reach
            index = read_positions(geometry.mode, before, n, after).to(x.device)
            core = torch.zeros_like(x.narrow(axis, 0, 1)).repeat_interleave(n, axis)
            x = core.index_add_(axis, index, x)
            continue
        low, core, high = x.split([before, n, after], axis)
        core = core.clone()
        if geometry.mode == "circular":
            core.narrow(axis, n - before, before).add_(low)
            core.narrow(axis, 0, after).add_(high)
        elif geometry.mode == "replicate":
            core.narrow(axis, 0, 1).add_(low.sum(axis, keepdim=True))
            core.narrow(axis, n - 1, 1).add_(high.sum(axis, keepdim=True))
        else:  # reflect
            core.narrow(axis, 1, before).add_(low.flip(axis))
            core.narrow(axis, n - 1 - after, after).add_(high.flip(axis))
        x = core
    return x


@final
class TransposedMap(ExplicitMap):
    """A map read backwards."""

    def __init__(self, inner: LinearMap) -> None:
        self.inner = inner
        self.source, self.target = inner.target, inner.source

    def forward(self, rows: Tensor) -> Tensor:
        return self.inner.adjoint(rows)

    def adjoint(self, rows: Tensor) -> Tensor:
        return self.inner.forward(rows)
