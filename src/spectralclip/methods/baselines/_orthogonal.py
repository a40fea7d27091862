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
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._training import CONVS
from spectralclip.methods._domain import sole_module, why_not_plain
from spectralclip.methods.baselines._periodic import PeriodicForm, paddings
from spectralclip.methods.baselines._swap import (
    Form,
    OwnShape,
    SwapMethod,
    Transform,
    why_not_its_own,
)

_SQUARINGS = 3  # until rounding is undone


class OrthogonalMethod(SwapMethod):
    """Each dense layer and convolution is exchanged for an orthogonal one of its weight."""

    estimate: ClassVar[None] = None  # they never ask for a norm

    @abstractmethod
    def orthogonal(self, matrices: Tensor) -> Tensor:
        """Matrices `(..., m, n)`, real or complex, with orthonormal rows or columns.

        It has to commute with complex conjugation, so that real kernels stay real.
        """

    def torus(self, sides: Shape, kernel: Shape) -> Shape:
        """The sides of the torus that the kernel is made on; each divides that of the image."""
        return sides

    def why_not(self, layer: FoundLayer) -> str:
        """Why the method is not defined for a layer; empty if it is."""
        why = why_not_plain(layer, nn.Linear, *CONVS) or why_not_its_own(layer)
        if why:
            return why
        module = sole_module(layer)
        if _is_pointwise(module):
            return ""
        if len(layer.in_shapes) > 1:
            return f"it is made for one size of image, not for {len(layer.in_shapes)}"
        return _why_not_periodic(module, layer.in_shapes[0][1:])

    def form(self, layer: FoundLayer) -> Form:
        """The orthogonal layer."""
        module = sole_module(layer)
        if _is_pointwise(module):
            return OwnShape(_Matrix(self.orthogonal, getattr(module, "groups", 1)))
        sides = layer.in_shapes[0][1:]
        torus = self.torus(sides, module.kernel_size)
        spread = tuple(n // side for n, side in zip(sides, torus, strict=True))
        plain = spread == (1,) * len(spread)
        before = tuple(low for low, _ in paddings(module))
        if not plain:  # A tap moves to the nearest point that there is.
            before = tuple(k // 2 for k in module.kernel_size)
        dilation = module.dilation if plain else (1,) * len(spread)
        return PeriodicForm(
            layer.name,
            self.orthogonal,
            torus,
            spread,
            module.stride,
            dilation,
            before,
            module.groups,
        )


def _is_pointwise(module: Any) -> bool:
    """Whether a layer is one matrix at each position: dense, or 1x1 without padding."""
    if isinstance(module, nn.Linear):
        return True
    return math.prod(module.kernel_size) == 1 and not any(map(sum, paddings(module)))


def _why_not_periodic(module: Any, sides: Shape) -> str:
    """Why there is no such layer on a torus; empty if there is."""
    geometry = zip(
        sides, module.kernel_size, module.stride, module.dilation, paddings(module), strict=True
    )
    for side, kernel, stride, dilation, (low, high) in geometry:
        count = (side + low + high - dilation * (kernel - 1) - 1) // stride + 1
        if side % stride or count * stride != side:
            return (
                "on a torus a side of n positions becomes one of n / stride, and here "
                f"{side} becomes {count} with stride {stride}"
            )
    return ""


@final
@dataclass(frozen=True)
class _Matrix:
    """The weight of a dense layer or 1x1 convolution, made orthogonal in each group."""

    orthogonal: Transform
    groups: int

    def __call__(self, weight: Tensor) -> Tensor:
        matrices = weight.reshape(self.groups, -1, weight.shape[1])
        return self.orthogonal(matrices).reshape(weight.shape)


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
