"""The parameters that clipping moves, and the layer as a function of them.

For plain layers, alone or with batch norms beside them, M is linear in one weight. That weight
is taken with the batch norms' factors multiplied in, which turns the composition into a plain
layer again; they are divided out at the end. Everything else goes through the layer's own
forward and backward.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from spectralclip._bounds import torus_norm
from spectralclip._clipping.direct import DecomposedMatrices
from spectralclip._clipping.plan import Move, Plan, moving_names, plan
from spectralclip._clipping.tap_metric import TapMetric
from spectralclip._linalg import wide
from spectralclip._operators import AffineFunction, AutogradMap, ConvMap, LinearOperator
from spectralclip._spectrum import most_work

ESTIMATED_BEYOND, ESTIMATING_ROWS = 2048, 64


class Movable(ABC):
    """M as a function of a point, the tensor of everything that moves.

    Attributes:
        start: Where the layer is now.
        unit: M is taken in multiples of this, so that squares of tiny or huge norms stay in
            range.
    """

    start: Tensor
    unit: float

    @abstractmethod
    def operator(self, point: Tensor) -> LinearOperator:
        """M at a point."""

    @abstractmethod
    def distance(self, point: Tensor) -> float:
        """`||M(point) - M(start)||_F`."""

    @abstractmethod
    def scaled(self, point: Tensor, factor: float) -> Tensor:
        """The point at which M is `factor` times as large, or smaller still."""

    @abstractmethod
    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        """The layer's own parameters, by name, that a point stands for."""


class Steerable(Movable):
    """One that is clipped step by step, by gradients of its singular values.

    Attributes:
        is_linear: Whether M is linear in the point, up to a constant.
        knows_distance: Whether lengths of changes are distances between operators.
    """

    is_linear: bool
    knows_distance: bool

    @abstractmethod
    def gradients(self, point: Tensor, U: Tensor, V: Tensor) -> Tensor:
        """The gradients of `<u_i, M v_i>` at a point, for flat rows: `(k, *start.shape)`."""

    @abstractmethod
    def solve(self, gradients: Tensor) -> Tensor:
        """`D^-1 g` for each gradient: the direction of fastest change for its length."""

    @abstractmethod
    def length(self, change: Tensor) -> float:
        """`sqrt(<g, D g>)` of a change of the point."""


@final
class ConvWeight(Steerable):
    """The weight of a convolution or transposed convolution."""

    is_linear = True
    knows_distance = True

    def __init__(
        self, function: AffineFunction, found: Plan, metric: TapMetric | None = None
    ) -> None:
        self._function, self._plan = function, found
        conv = found.map.convolution
        assert conv is not None
        self.conv, self.is_transposed = conv, found.map.is_transposed
        self.start, self.unit = conv.weight, found.unit
        self.metric = TapMetric(conv, None, None) if metric is None else metric

    def operator(self, point: Tensor) -> LinearOperator:
        return LinearOperator(self._function, [self._plan.map.with_weight(point)], transposed=False)

    def symbol_norm(self, point: Tensor, excess: float, applications: int) -> float | None:
        """At least the norm at a point, from the symbol: that of a torus around the layer.

        `excess` is what it may be above that, relatively. None for other paddings than zeros and
        circular, or where so many applications cost less.
        """
        conv = self.conv
        if most_work(conv, excess) > applications * conv.work:
            return None
        moved = ConvMap(point, conv.geometry, conv.source.shape, channels_last=False)
        return torus_norm(moved, excess)

    def gradients(self, point: Tensor, U: Tensor, V: Tensor) -> Tensor:
        return self._plan.map.weight_gradients(U, V)

    def solve(self, gradients: Tensor) -> Tensor:
        return self.metric.solve(gradients)

    def length(self, change: Tensor) -> float:
        return self.metric.norm(change)

    def distance(self, point: Tensor) -> float:
        return self.metric.norm(wide(point) - wide(self.start))

    def scaled(self, point: Tensor, factor: float) -> Tensor:
        return point * factor

    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        return self._plan.parameters(point)


@final
class GenericWeights(Steerable):
    """Any parameters, through the layer's own forward and backward.

    Lengths are those of the parameters themselves: D is not known here.
    """

    knows_distance = False

    def __init__(self, function: AffineFunction, names: list[str], unit: float) -> None:
        self._function, self._names, self.unit = function, names, unit
        self._shapes = [function.values[name].shape for name in names]
        self.start = torch.cat([function.values[name].flatten() for name in names])
        self.is_linear = False
        self.is_linear = self._measured_linear()

    def _values(self, point: Tensor) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = point.split(sizes)
        return {
            name: part.reshape(shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }

    def operator(self, point: Tensor) -> LinearOperator:
        return generic_operator(self._function, self._values(point)).scaled(1 / self.unit)

    def gradients(self, point: Tensor, U: Tensor, V: Tensor) -> Tensor:
        op = self.operator(point)
        outputs, inputs = op.output_tensor(U), op.input_tensor(V)
        rows = []
        for u, v in zip(outputs, inputs, strict=True):
            gradient = op.pullback(u, v)
            rows.append(torch.cat([gradient[name].flatten() for name in self._names]))
        return torch.stack(rows) / self.unit

    def solve(self, gradients: Tensor) -> Tensor:
        return gradients

    def length(self, change: Tensor) -> float:
        return float(wide(change).norm())

    def distance(self, point: Tensor) -> float:
        """By sending a basis of the smaller side through both layers; an estimate if it is long."""
        here, there = self.operator(point), self.operator(self.start)
        if here.shape[0] < here.shape[1]:
            here, there = here.adjoint(), there.adjoint()
        n, step = here.shape[1], 64
        if n > ESTIMATED_BEYOND:
            generator = torch.Generator("cpu").manual_seed(0)
            rows = torch.randn(ESTIMATING_ROWS, n, generator=generator, device="cpu").to(point)
            change = here.forward_rows(rows) - there.forward_rows(rows)
            return float(change.norm()) / math.sqrt(ESTIMATING_ROWS)
        total = 0.0
        for first in range(0, n, step):
            rows = torch.zeros(min(step, n - first), n, device=point.device, dtype=point.dtype)
            rows.diagonal(first).fill_(1.0)
            total += float((here.forward_rows(rows) - there.forward_rows(rows)).square().sum())
        return math.sqrt(total)

    def scaled(self, point: Tensor, factor: float) -> Tensor:
        """By the degree in which M depends on the parameters, where it has one."""
        generator = torch.Generator("cpu").manual_seed(0)
        row = torch.randn(
            1, math.prod(self._function.in_shape), generator=generator, device="cpu"
        ).to(point)
        sizes = [float(self.operator(t * point).forward_rows(row).norm()) for t in (1.0, 0.5, 0.25)]
        if min(sizes) <= 0:
            return point * factor
        degree = math.log2(sizes[0] / sizes[1])
        has_degree = abs(math.log2(sizes[1] / sizes[2]) - degree) < 1e-2 and degree > 0.5
        return point * factor ** (1 / degree if has_degree else 1)

    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        return self._values(point)

    def _measured_linear(self) -> bool:
        """Whether M is affine in the point: its second differences vanish along a random line."""
        generator = torch.Generator("cpu").manual_seed(0)
        size = float(self.start.norm()) / math.sqrt(self.start.numel())
        other = size * torch.randn(self.start.shape, generator=generator, device="cpu").to(
            self.start
        )
        n = math.prod(self._function.in_shape)
        row = torch.randn(1, n, generator=generator, device="cpu").to(self.start)
        images = [self.operator(self.start + t * other).forward_rows(row) for t in (-1.0, 0.0, 1.0)]
        bend = images[0] - 2 * images[1] + images[2]
        return float(bend.norm()) <= 1e-3 * float(sum(image.norm() for image in images))


def generic_operator(function: AffineFunction, values: dict[str, Tensor]) -> LinearOperator:
    """The layer with other parameter values, through its own forward and backward."""
    moved = copy.copy(function)
    moved.values = {**function.values, **values}
    whole = AutogradMap(moved, 0, len(moved.stages))
    return LinearOperator(moved, [whole], transposed=False)


@final
class DirectWeight(Movable):
    """A weight whose singular values can be set one by one: dense, 1x1, batch norm."""

    def __init__(self, function: AffineFunction, found: Plan) -> None:
        self._function, self._plan = function, found
        assert found.map.weight is not None
        self.start, self.unit = found.map.weight, found.unit

    def operator(self, point: Tensor) -> LinearOperator:
        return LinearOperator(self._function, [self._plan.map.with_weight(point)], transposed=False)

    def clipped(self, max_norm: float) -> Tensor:
        """The nearest weight within the bound."""
        if self.start.ndim == 1:
            return self.start.clamp(-max_norm, max_norm)
        return self._decomposed.clipped(max_norm).reshape(self.start.shape)

    @property
    def norm(self) -> float:
        """The largest singular value at the start."""
        return float(self.start.abs().max()) if self.start.ndim == 1 else self._decomposed.norm

    @cached_property
    def _decomposed(self) -> DecomposedMatrices:
        conv = self._plan.map.convolution
        groups = 1 if conv is None else conv.geometry.groups
        return DecomposedMatrices(self.start.reshape(groups, self.start.shape[0] // groups, -1))

    def distance(self, point: Tensor) -> float:
        square = self._plan.map.with_weight(point - self.start).frobenius_sq()
        assert square is not None
        return math.sqrt(square)

    def scaled(self, point: Tensor, factor: float) -> Tensor:
        return point * factor

    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        return self._plan.parameters(point)


def movable_weight(
    op: LinearOperator, move: Move, unit: float, metric: TapMetric | None = None
) -> Movable:
    """What moves in a layer, in the form that knows most of it.

    A convolution's distances are measured by `metric` where that is given.
    """
    function = op.function
    names = moving_names(op, function, move)
    found = plan(function, names, unit)
    if found is None:
        return GenericWeights(function, names, unit)
    conv = found.map.convolution
    if conv is not None and not conv.has_separate_windows:
        return ConvWeight(function, found, metric)
    return DirectWeight(function, found)


def stored_operator(function: AffineFunction, movable: Movable, point: Tensor) -> LinearOperator:
    """The layer with its parameters rounded as they will be stored, in the movable's unit."""
    if stores_in_full(function, movable, point):
        return movable.operator(point)
    values = movable.parameters(point)
    stored = {name: function.parameters[name].dtype for name in values}
    rounded = {name: value.to(stored[name]).to(function.dtype) for name, value in values.items()}
    whole = generic_operator(function, rounded)
    return whole if movable.unit == 1 else whole.scaled(1 / movable.unit)


def stores_in_full(function: AffineFunction, movable: Movable, point: Tensor) -> bool:
    """Whether the parameters of a point are stored in the precision of the computation."""
    names = movable.parameters(point)
    return all(function.parameters[name].dtype == function.dtype for name in names)
