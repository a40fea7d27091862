"""Orthogonal layers: dense ones by their matrix, convolutions by their symbols on a torus.

With circular padding a convolution is one small matrix for each frequency, its symbol, and all of
its singular values are one where the symbols are unitary, or have orthonormal rows or columns. So
each method is one function on batches of matrices. A real kernel comes back from the symbols; in
general it is as large as the image.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._linalg import grid_kernel, split_phases
from spectralclip._models import FoundLayer
from spectralclip._operators import conv_paddings
from spectralclip.methods._domain import sole_module
from spectralclip.methods.baselines._circulant import torus_symbols
from spectralclip.methods.baselines._swap import Form, OwnShape, SwapMethod, Transform

_SQUARINGS = 3  # until rounding is undone


class OrthogonalMethod(SwapMethod):
    """Each dense layer and convolution is exchanged for an orthogonal one of its weight."""

    @abstractmethod
    def orthogonal(self, matrices: Tensor) -> Tensor:
        """Matrices `(..., m, n)`, real or complex, with orthonormal rows or columns.

        It has to commute with complex conjugation, so that real kernels stay real.
        """

    def torus(self, sides: Shape, kernel: Shape) -> Shape:
        """The sides of the torus that the kernel is made on; each divides that of the image."""
        return sides

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers, and convolutions at one size of image that have a form on a torus."""
        why, module = super().why_not(layer), sole_module(layer)
        if why or _is_pointwise(module):
            return why
        if len(in_shapes) > 1:
            return f"it is made for one size of image, not for {len(in_shapes)}"
        return _why_not_periodic(module, in_shapes[0][1:])

    def form(self, layer: FoundLayer) -> Form:
        """The orthogonal layer."""
        module = sole_module(layer)
        if _is_pointwise(module):
            return OwnShape(partial(_pointwise, self.orthogonal, getattr(module, "groups", 1)))
        sides = layer.in_shapes[0][1:]
        torus = self.torus(sides, module.kernel_size)
        spread = tuple(n // side for n, side in zip(sides, torus, strict=True))
        plain = spread == (1,) * len(spread)
        before = tuple(low for low, _ in conv_paddings(module))
        if not plain:  # A tap moves to the nearest point that there is.
            before = tuple(k // 2 for k in module.kernel_size)
        dilation = module.dilation if plain else (1,) * len(spread)
        geometry = module.stride, dilation, before, module.groups
        return PeriodicForm(layer.name, self.orthogonal, torus, spread, *geometry)


def _is_pointwise(module: Any) -> bool:
    """Whether a layer is one matrix at each position: dense, or 1x1 without padding."""
    if isinstance(module, nn.Linear):
        return True
    return math.prod(module.kernel_size) == 1 and not any(map(sum, conv_paddings(module)))


def _why_not_periodic(module: Any, sides: Shape) -> str:
    """Why there is no such layer on a torus; empty if there is."""
    slides = module.kernel_size, module.stride, module.dilation
    geometry = zip(sides, *slides, conv_paddings(module), strict=True)
    for side, kernel, stride, dilation, (low, high) in geometry:
        count = (side + low + high - dilation * (kernel - 1) - 1) // stride + 1
        if side % stride or count * stride != side:
            return (
                "on a torus a side of n positions becomes one of n / stride, and here "
                f"{side} becomes {count} with stride {stride}"
            )
    return ""


def _pointwise(orthogonal: Transform, groups: int, weight: Tensor) -> Tensor:
    """The weight of a dense layer or 1x1 convolution, made orthogonal in each group."""
    matrices = weight.reshape(groups, -1, weight.shape[1])
    return orthogonal(matrices).reshape(weight.shape)


@final
@dataclass(frozen=True)
class PeriodicForm(Form):
    """A convolution with circular padding whose symbols are made orthogonal.

    A stride is taken as its authors do: the input is cut into its phases, which become channels.
    """

    name: str  # the layer's
    orthogonal: Transform  # the function of the symbols
    sides: Shape  # of the torus that the kernel is on
    spread: Shape  # how far apart its points lie on the image: the image's sides by `sides`
    stride: Shape  # of the convolution; one where `spread` is not
    dilation: Shape  # of the weight on the torus
    before: Shape  # padding of the weight at the low end
    groups: int

    def linear(self, module: Any, weight: Tensor, x: Tensor) -> Tensor:
        axes, space = len(self.sides), tuple(range(2, 2 + len(self.sides)))
        self._require_size(tuple(x.shape[-axes:]))
        batch = x.reshape(-1, *x.shape[-axes - 1 :])
        blocks = self._blocks(weight)
        if any(step > 1 for step in self.spread):
            y = self._spread_out(self._window(self._kernel(blocks)), batch)
        else:
            spectrum = torch.fft.rfftn(split_phases(batch, self.stride), dim=space)
            columns = spectrum.unflatten(1, (self.groups, -1)).permute(*range(3, 3 + axes), 1, 2, 0)
            rows = (blocks @ columns).permute(-1, -3, -2, *range(axes)).flatten(1, 2)
            grid = tuple(n // s for n, s in zip(self.sides, self.stride, strict=True))
            y = torch.fft.irfftn(rows, s=grid, dim=space)
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

    def _blocks(self, weight: Tensor) -> Tensor:
        """The symbols, made orthogonal: `(*frequencies, groups, outputs, inputs)`."""
        kernel = weight
        geometry = zip(self.sides, self.dilation, self.before, strict=True)
        for axis, (side, step, low) in enumerate(geometry, 2):
            places = torch.arange(kernel.shape[axis], device=kernel.device) * step - low
            shape = (*kernel.shape[:axis], side, *kernel.shape[axis + 1 :])
            kernel = kernel.new_zeros(shape).index_add(axis, places.remainder(side), kernel)
        symbols = torus_symbols(kernel, self.sides, self.stride).unflatten(-2, (self.groups, -1))
        return self.orthogonal(symbols.contiguous())

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


def skew_exponential(matrices: Tensor) -> Tensor:
    """`exp((A - A^H) / 2)`, which is unitary, of matrices filled up with zeros to be square.

    Of the result as many rows and columns are kept as there were.
    """
    m, n = matrices.shape[-2:]
    square = F.pad(matrices, (0, max(m, n) - n, 0, max(m, n) - m))
    return _exponential(0.5 * (square - square.mH))[..., :m, :n]


def _exponential(a: Tensor) -> Tensor:
    """The exponential of skew-Hermitian matrices, to rounding, by a series and squarings.

    The gradient of `torch.linalg.matrix_exp` takes an exponential of matrices twice as large; that
    of a few products costs as much as twice these.
    """
    size = max(1.0, float(a.detach().abs().max()))
    scaled = a / size  # whose squares do not overflow
    squares = scaled @ scaled
    bound = size * math.sqrt(float(squares.detach().abs().sum(-1).max()))  # of all norms
    halvings = math.ceil(math.log2(bound)) if 1 < bound < math.inf else 0
    x, x2 = 0.5**halvings * a, (0.5**halvings * size) ** 2 * squares
    x3, identity = x2 @ x, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    # 1 / 12! and 1 / 21! are what is left out.
    degree = 9 if torch.finfo(a.dtype).eps > 1e-10 else 18
    total = identity
    for k in range(degree, -1, -3):
        first, second, third = (1 / math.factorial(k + more) for more in range(3))
        part = first * identity + second * x + third * x2
        total = part if k == degree else part + x3 @ total
    for done in range(1, halvings + 1):
        total = total @ total
        # Each squaring doubles the distance from unitary ones.
        if done % _SQUARINGS == 0:
            total = nearer_unitary(total)
    return total


def nearer_unitary(x: Tensor) -> Tensor:
    """One step of Newton's iteration for the nearest matrices with orthonormal rows or columns.

    A distance e from them becomes one of about e^2: what rounding has done is undone.
    """
    gram = x @ (x.mH @ x) if x.shape[-2] >= x.shape[-1] else (x @ x.mH) @ x
    return 1.5 * x - 0.5 * gram


def repetition(module: Any) -> str:
    """How a border puts some pixel into more windows than the kernel has taps; empty if not."""
    mode = getattr(module, "padding_mode", "zeros")
    if mode in ("reflect", "replicate"):
        return f"padding_mode={mode!r}, which repeats pixels"
    if mode == "zeros":
        return ""
    axes = zip(conv_paddings(module), module.dilation, module.kernel_size, strict=True)
    if any(low + high > d * (k - 1) for (low, high), d, k in axes):
        return (
            f"a circular padding of {module.padding}, which is more than half the reach of the "
            "kernel and repeats outputs"
        )
    return ""
