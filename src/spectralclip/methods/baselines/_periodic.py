"""A convolution on a torus, as the matrices that it is at each frequency, and as a plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import grid_kernel, grid_symbols, split_phases
from spectralclip.methods.baselines._swap import Form, Transform


@final
@dataclass(frozen=True)
class PeriodicForm(Form):
    """A convolution with circular padding whose symbols are made orthogonal.

    A stride is taken as its authors do: the input is cut into its phases, which become channels.

    Attributes:
        name: The layer's.
        orthogonal: The function of the symbols.
        sides: Of the torus that the kernel is on.
        spread: How far apart its points lie on the image: the image's sides by `sides`.
        stride: Of the convolution; one where `spread` is not.
        dilation: Of the weight on the torus.
        before: Padding of the weight at the low end.
        groups: Of the convolution.
    """

    name: str
    orthogonal: Transform
    sides: Shape
    spread: Shape
    stride: Shape
    dilation: Shape
    before: Shape
    groups: int

    def linear(self, module: Any, weight: Tensor, x: Tensor) -> Tensor:
        axes = len(self.sides)
        self._require_size(tuple(x.shape[-axes:]))
        batch = x.reshape(-1, *x.shape[-axes - 1 :])
        blocks = self._blocks(weight)
        if any(step > 1 for step in self.spread):
            y = self._spread_out(self._window(self._kernel(blocks)), batch)
        else:
            spectrum = torch.fft.rfftn(split_phases(batch, self.stride), dim=self._space)
            columns = spectrum.unflatten(1, (self.groups, -1)).permute(*self._last(3), 1, 2, 0)
            rows = (blocks @ columns).permute(-1, -3, -2, *range(axes)).flatten(1, 2)
            y = torch.fft.irfftn(rows, s=self._grid, dim=self._space)
        return y.reshape(*x.shape[: -axes - 1], *y.shape[1:])

    def export_(self, module: Any, weight: Tensor) -> Tensor:
        kernel = self._window(self._kernel(self._blocks(weight)))
        low = tuple(self._low(axis) for axis in range(len(self.sides)))
        module.kernel_size, module.dilation = tuple(kernel.shape[2:]), self.spread
        module.padding, module.padding_mode = low, "circular"
        module._reversed_padding_repeated_twice = [p for p in reversed(low) for _ in (0, 1)]
        return kernel

    def _require_size(self, got: Shape) -> None:
        """On another torus the same kernel is not orthogonal, if it fits at all."""
        size = tuple(n * step for n, step in zip(self.sides, self.spread, strict=True))
        if got != size:
            raise ValueError(
                f"Layer {self.name!r} is exchanged for an orthogonal one on images of {size}, and "
                f"got one of {got}: give it images of {size}, or remove the method and attach it "
                f"with example inputs that lead to {got} here. AOL holds at every size."
            )

    @property
    def _space(self) -> tuple[int, ...]:
        return tuple(range(2, 2 + len(self.sides)))

    def _last(self, first: int) -> tuple[int, ...]:
        return tuple(range(first, first + len(self.sides)))

    @property
    def _grid(self) -> Shape:
        return tuple(n // s for n, s in zip(self.sides, self.stride, strict=True))

    def _blocks(self, weight: Tensor) -> Tensor:
        """The symbols, made orthogonal: `(*frequencies, groups, outputs, inputs)`."""
        kernel = weight
        geometry = zip(self.sides, self.dilation, self.before, strict=True)
        for axis, (side, step, low) in enumerate(geometry, 2):
            places = torch.arange(kernel.shape[axis], device=kernel.device) * step - low
            shape = (*kernel.shape[:axis], side, *kernel.shape[axis + 1 :])
            kernel = kernel.new_zeros(shape).index_add(axis, places.remainder(side), kernel)
        blocks = grid_symbols(kernel, self.stride).unflatten(-2, (self.groups, -1))
        return self.orthogonal(blocks.contiguous())

    def _kernel(self, blocks: Tensor) -> Tensor:
        """The kernel `(c_out, c_in / groups, *sides)` of some symbols; its taps begin at zero."""
        return grid_kernel(blocks.flatten(-3, -2), self.sides, self.stride)

    def _low(self, axis: int) -> int:
        """Padding at either end of an axis with which a plain convolution does the same."""
        side, step = self.sides[axis], self.stride[axis]
        # Without a stride the kernel needs a middle: an even one gets a tap more, of zeros.
        return (side - step + 1) // 2 if step > 1 else self.spread[axis] * (side // 2)

    def _window(self, kernel: Tensor) -> Tensor:
        """The kernel as a plain convolution with circular padding wants it."""
        for axis, (side, step, spread) in enumerate(
            zip(self.sides, self.stride, self.spread, strict=True)
        ):
            size = side if step > 1 or side % 2 else side + 1
            taps = torch.arange(size, device=kernel.device) - self._low(axis) // spread
            kernel = kernel.index_select(axis + 2, taps.remainder(side))
            if size > side:
                kept = [1.0] * side + [0.0]
                ones = [1] * (len(self.sides) - axis - 1)
                kernel = kernel * kernel.new_tensor(kept).reshape(-1, *ones)
        return kernel

    def _spread_out(self, kernel: Tensor, x: Tensor) -> Tensor:
        low = [self._low(axis) for axis in range(len(self.sides))]
        padded = F.pad(x, [p for p in reversed(low) for _ in (0, 1)], mode="circular")
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(low) - 1]
        y: Tensor = convolve(padded, kernel, dilation=self.spread, groups=self.groups)
        return y


def paddings(module: Any) -> list[tuple[int, int]]:
    """Padding at the low and at the high end of each axis of a convolution."""
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":
        return [(size // 2, size - size // 2) for size in _reach(module)]
    return [(pad, pad) for pad in module.padding]


def repetition(module: Any) -> str:
    """How a border puts some pixel into more windows than the kernel has taps; empty if not."""
    mode = getattr(module, "padding_mode", "zeros")
    if mode in ("reflect", "replicate"):
        return f"padding_mode={mode!r}, which repeats pixels"
    if mode == "zeros":
        return ""
    widths = zip(paddings(module), _reach(module), strict=True)
    if any(low + high > reach for (low, high), reach in widths):
        return (
            f"a circular padding of {module.padding}, which is more than half the reach of the "
            "kernel and repeats outputs"
        )
    return ""


def _reach(module: Any) -> list[int]:
    return [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
