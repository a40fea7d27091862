"""Convolutions taken for circulant: the symbols of a kernel on a torus, clipped one by one."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectralclip._common import Shape, as_shape
from spectralclip._linalg import grid_kernel, grid_symbols, largest_singular_value
from spectralclip._operators import CONVS, HALF_PRECISION
from spectralclip._training import MethodState, Promise, Sharing
from spectralclip.methods._domain import DENSE, EstimatingMethod, Source, sole_module, why_not_plain


def why_not_circulant(
    layer: object, *in_shapes: Shape, strides: bool = True, wraps: bool = True
) -> str:
    """Why a layer is no plain convolution or dense layer on a torus; empty if it is.

    The padding is not asked for: the methods on a torus are published for circular padding, and
    used for all. Where the kernel `wraps` around the torus of the input, it has to fit.
    """
    reason = why_not_plain(layer, *DENSE, *CONVS)
    module = sole_module(layer)
    if reason or isinstance(module, DENSE):
        return reason
    if module.groups != 1:
        return f"it takes one group, not {module.groups}"
    if set(module.dilation) != {1}:
        return f"it takes kernels without dilation, not {module.dilation}"
    if not strides and set(module.stride) != {1}:
        return f"it takes stride 1, not {module.stride}"
    for shape in in_shapes:
        sides = _sides(module, shape)
        if wraps and any(k > n for k, n in zip(module.kernel_size, sides, strict=True)):
            return f"its kernel {module.kernel_size} is larger than the image {tuple(sides)}"
    return ""


def _sides(module: Any, in_shape: Shape) -> Shape:
    shape = as_shape(in_shape)
    if shape[:1] != (module.in_channels,) or len(shape) != 1 + len(module.kernel_size):
        raise ValueError(
            f"in_shape must be ({module.in_channels}, *sides) with {len(module.kernel_size)} sides "
            f"for {module}, got {shape}."
        )
    return shape[1:]


def loses_no_tap(module: nn.Module) -> bool:
    """Whether windows do not overlap: symbols are constant, and clipping leaves none to cut off."""
    if not isinstance(module, CONVS):
        return isinstance(module, DENSE)
    apart = all(k <= s for k, s in zip(module.kernel_size, module.stride, strict=True))
    return apart and module.padding_mode == "zeros"


def kernel_of(module: nn.Module) -> Tensor:
    """The weight, `(c_out, c_in, *taps)` or of a dense layer, at least in single precision."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight.float() if weight.dtype in HALF_PRECISION else weight


def is_finite(kernel: Tensor) -> bool:
    """Whether the symbols are: each of their entries is a sum of taps with unit factors."""
    return bool(kernel.abs().sum().isfinite())


def torus_symbols(kernel: Tensor, sides: Shape, stride: Shape) -> Tensor:
    """The symbols `(*frequencies, c_out, c_in * phases)` of a kernel that is laid onto a torus."""
    gaps = [n - k for n, k in zip(sides, kernel.shape[2:], strict=True)]
    padded = F.pad(kernel, [width for gap in reversed(gaps) for width in (0, gap)])
    return grid_symbols(padded, stride)


class Torus(NamedTuple):
    """Where a strided convolution is block-circulant.

    Its matrix is block diagonal in the Fourier modes of the output's grid, with blocks
    `(c_out, c_in * phases)`, and its singular values are those of the blocks. Where
    the padding shifts the kernel, blocks are multiplied by unitary matrices, which changes neither
    their values nor what clipping them does.
    """

    sides: Shape  # of the input; none for a dense layer, which is its own symbol
    stride: Shape  # divides the sides

    @staticmethod
    def of(module: Any, in_shape: Shape) -> Torus:
        """That of a layer; sides that the stride does not divide are rounded up."""
        if isinstance(module, DENSE):
            return Torus((), ())
        pairs = zip(_sides(module, in_shape), module.stride, strict=True)
        return Torus(tuple(math.ceil(n / s) * s for n, s in pairs), tuple(module.stride))

    def symbols(self, kernel: Tensor) -> Tensor:
        """The blocks `(*frequencies, c_out, c_in * phases)`; of conjugate ones, half are left."""
        return torus_symbols(kernel, self.sides, self.stride) if self.sides else kernel

    def kernel(self, symbols: Tensor, taps: Shape) -> Tensor:
        """The kernel with these symbols, cut down to its first taps."""
        if not self.sides:
            return symbols
        whole = grid_kernel(symbols, self.sides, self.stride)
        return whole[(slice(None), slice(None), *map(slice, taps))]

    def norm(self, kernel: Tensor) -> float:
        """The largest singular value on the torus; NaN if there is none."""
        return largest_singular_value(self.symbols(kernel)) if is_finite(kernel) else math.nan

    def clip(self, kernel: Tensor, bound: float) -> Tensor:
        """Clip every symbol and cut the outcome down to the taps; itself if none is above."""
        U, S, Vh = torch.linalg.svd(self.symbols(kernel), full_matrices=False)
        if bool(S.max() <= bound):
            return kernel
        clipped = (U * S.clamp(max=bound)[..., None, :]) @ Vh
        return self.kernel(clipped, tuple(kernel.shape[2:]))


class CirculantMethod(EstimatingMethod):
    """Clips all layers of a model every so many steps, and does nothing in between."""

    every: int
    promises = (Promise(margin=1e-5, covers=loses_no_tap, settings={"every": 1}),)

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers and convolutions with one group and no dilation."""
        return why_not_circulant(layer, *in_shapes)

    @abstractmethod
    def clipped(self, kernel: Tensor, torus: Torus, bound: float) -> Tensor:
        """A kernel on its torus, within a bound: the same object if it stays as it is."""

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; nothing happens before the first round."""
        return _Rounds(self, sharing, seed)

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """The largest singular value, as if the padding were circular."""
        sole = sole_module(module)
        return Torus.of(sole, in_shape).norm(kernel_of(sole))


@final
class _Rounds(MethodState):
    method: CirculantMethod

    @torch.no_grad()
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items() if step % self.method.every == 0 else ():
            module: Any = self.layers[name].modules[0]
            kernel = before = kernel_of(module)
            if not is_finite(kernel):
                self.record(name, math.nan)
                continue
            tori = [Torus.of(module, shape) for shape in self.layers[name].in_shapes]
            for torus in tori:
                kernel = self.method.clipped(kernel, torus, bound)
            if kernel is not before:
                module.weight.copy_(kernel)
            self.record(name, max(torus.norm(kernel) for torus in tori))

    def layer_states(self) -> dict[str, Any]:
        return {name: {"norm": norm} for name, norm in self.norms().items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        self._norms = {n: float(states[n]["norm"]) for n in self.layers if n in states}
