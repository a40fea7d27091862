"""Which parameters of a layer move, and the layer as a function of them.

For plain layers, alone or between batch norms, M is linear in one weight. That weight is taken with
the batch norms' factors multiplied in, which turns the composition into a plain layer again; they
are divided out at the end. Everything else goes through the layer's own forward and backward.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, final

import torch
from torch import Tensor, nn

from spectralclip._clipping.metric import PlainMetric
from spectralclip._clipping.plain_weight import PlainWeight, plain_weight
from spectralclip._linalg import GramSVD, gradients_in, wide
from spectralclip._operators import (
    AffineFunction,
    AnyBatchNorm,
    ConvMap,
    LinearOperator,
    is_linear_in,
    operator_at,
)

Move = Literal["first", "all"]
# Distances of layers without a closed form: by a full basis up to so many inputs, which takes 32
# batches; beyond that from so many random vectors, to 1 / sqrt(2 * 64) = 9 %.
ESTIMATED_BEYOND, ESTIMATING_ROWS = 2048, 64


def acting_names(op: LinearOperator) -> tuple[list[str], list[str]]:
    """The parameters that M depends on: those of layers, and those of batch norms."""
    function, generator = op.function, torch.Generator("cpu").manual_seed(0)
    v, u = (
        torch.randn(shape, generator=generator, device="cpu").to(op.device, op.dtype)
        for shape in (op.in_shape, op.out_shape)
    )
    gradients = op.pullback(u, v) if op.parameters else {}
    # In the gradient of `<u, f(v) - f(0)>` the share of `f(0)` cancels, up to rounding.
    leaves = {name: function.values[name].detach().requires_grad_() for name in gradients}
    with torch.enable_grad():
        offset = torch.sum(u * function(function.zeros(1), leaves)[0])
    cancelled, rounding = gradients_in(offset, leaves), 100 * torch.finfo(op.dtype).eps
    acting = [
        name
        for name, gradient in gradients.items()
        if float(gradient.abs().max()) > rounding * float(cancelled[name].abs().max())
    ]
    if not acting:
        raise ValueError(
            f"{op.name} has no parameters that its norm depends on: there is nothing to clip."
        )
    norms = {
        stage.parameters[f"{path}.{own}" if path else own]
        for stage in function.stages
        if isinstance(stage.layer, nn.Module)
        for path, module in stage.layer.named_modules()
        if isinstance(module, AnyBatchNorm)
        for own, _ in module.named_parameters()
    }
    return [n for n in acting if n not in norms], [n for n in acting if n in norms]


def moving_names(op: LinearOperator, move: Move, *, in_training: bool = False) -> list[str]:
    """The parameters that clipping moves: those M depends on, of the first layer or of all.

    With "first", a batch norm moves only where nothing else can: it gives way to what it
    normalizes, also inside a module of one's own. Not so in training, where its statistics would
    follow the weight and undo the move: there the batch norms inside such a module move with it.
    """
    own, norms = acting_names(op)
    if move == "all":
        return [name for name in op.parameters if name in {*own, *norms}]
    candidates = own or norms
    first = next(
        stage.parameters.values()
        for stage in op.function.stages
        if not set(candidates).isdisjoint(stage.parameters.values())
    )
    moving = {*own, *norms} if in_training else {*candidates}
    return [name for name in op.parameters if name in moving and name in first]


@final
class Matrices:
    """A weight of independent matrices, one a group; of numbers, if it is a vector."""

    def __init__(self, weight: Tensor, groups: int) -> None:
        self._weight, self._groups = weight, groups

    @cached_property
    def _decomposed(self) -> GramSVD:
        rows = self._weight.shape[0] // self._groups
        return GramSVD(self._weight.reshape(self._groups, rows, -1), exact=True)

    @property
    def norm(self) -> float:
        return float(self._weight.abs().max()) if self._weight.ndim == 1 else self._decomposed.norm

    def clipped(self, max_norm: float) -> Tensor:
        """The nearest weight within the bound."""
        if self._weight.ndim == 1:
            return self._weight.clamp(-max_norm, max_norm)
        return self._decomposed.clipped(max_norm).reshape(self._weight.shape)


class FreeWeights(ABC):
    """M as a function of a point, the tensor of everything that moves.

    M is taken in multiples of `unit`, so that squares of tiny or huge norms stay in range.
    """

    start: Tensor  # where the layer is now
    is_linear: bool  # whether M is linear in the point, up to a constant
    knows_distance: bool  # whether lengths of changes are distances between operators
    metric: PlainMetric | None = None  # D, where it is known
    conv: ConvMap | None = None  # the convolution in units of `unit`, where the layer is one
    # The point as independent matrices, whose singular values can be set one by one, in dense
    # layers, batch norms and convolutions whose windows do not overlap.
    matrices: Matrices | None = None

    def __init__(self, function: AffineFunction, names: Sequence[str], unit: float) -> None:
        self._function, self.names, self.unit = function, list(names), unit

    @abstractmethod
    def operator(self, point: Tensor) -> LinearOperator:
        """M at a point."""

    @abstractmethod
    def gradients(self, point: Tensor, U: Tensor, V: Tensor) -> Tensor:
        """The gradients of `<u_i, M v_i>` at a point, for flat rows: `(k, *start.shape)`."""

    @abstractmethod
    def solve(self, gradients: Tensor) -> Tensor:
        """`D^-1 g` for each gradient: the direction of fastest change for its length."""

    @abstractmethod
    def length(self, change: Tensor) -> float:
        """`sqrt(<g, D g>)` of a change of the point."""

    @abstractmethod
    def distance(self, point: Tensor) -> float:
        """`||M(point) - M(start)||_F`."""

    @abstractmethod
    def scaled(self, point: Tensor, factor: float) -> Tensor:
        """The point at which M is `factor` times as large, or smaller still."""

    @abstractmethod
    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        """The layer's own parameters, by name, that a point stands for."""

    @final
    @property
    def is_stored_in_full(self) -> bool:
        """Whether the parameters are stored in the precision of the computation."""
        own = self._function.parameters
        return all(own[name].dtype == self._function.dtype for name in self.names)

    @final
    def stored_operator(self, point: Tensor) -> LinearOperator:
        """M with its parameters rounded as they will be stored."""
        if self.is_stored_in_full:
            return self.operator(point)
        function = self._function
        rounded = {
            name: value.to(function.parameters[name].dtype).to(function.dtype)
            for name, value in self.parameters(point).items()
        }
        return operator_at(function, rounded).scaled(1 / self.unit)


@final
class MergedWeight(FreeWeights):
    """The weight of a plain layer, with the factors of the batch norms beside it multiplied in."""

    is_linear = knows_distance = True

    def __init__(
        self, function: AffineFunction, plain: PlainWeight, unit: float, metric: PlainMetric | None
    ) -> None:
        super().__init__(function, [plain.name], unit)
        self._plain = plain
        merged = plain.weight if plain.factors is None else plain.weight * plain.factors
        self.start = merged / unit
        self.map = plain.own.with_weight(self.start)  # the whole, divided by the unit
        self._metric = self.metric = PlainMetric(self.map) if metric is None else metric
        self.conv = self.map.convolution
        if self.conv is None or self.conv.has_separate_windows:
            self.matrices = Matrices(self.start, self.conv.geometry.groups if self.conv else 1)

    def operator(self, point: Tensor) -> LinearOperator:
        return LinearOperator(self._function, [self.map.with_weight(point)], transposed=False)

    def gradients(self, point: Tensor, U: Tensor, V: Tensor) -> Tensor:
        return self.map.weight_gradients(U, V)

    def solve(self, gradients: Tensor) -> Tensor:
        return self._metric.solve(gradients)

    def length(self, change: Tensor) -> float:
        return self._metric.norm(change)

    def distance(self, point: Tensor) -> float:
        return self.length(wide(point) - wide(self.start))

    def scaled(self, point: Tensor, factor: float) -> Tensor:
        return point * factor

    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        return {self._plain.name: self._plain.parameter(point * self.unit)}


@final
class GenericWeights(FreeWeights):
    """Any parameters, through the layer's own code; lengths are their own, as D is not known."""

    knows_distance = False

    def __init__(self, function: AffineFunction, names: Sequence[str], unit: float) -> None:
        super().__init__(function, names, unit)
        self._shapes = [function.values[name].shape for name in names]
        self.start = torch.cat([function.values[name].flatten() for name in names])

    @cached_property
    def is_linear(self) -> bool:  # type: ignore[override]
        """Whether M is affine in all that moves together."""
        return is_linear_in(self._function, self.names)

    def parameters(self, point: Tensor) -> dict[str, Tensor]:
        parts = point.split([shape.numel() for shape in self._shapes])
        shaped = (part.reshape(s) for part, s in zip(parts, self._shapes, strict=True))
        return dict(zip(self.names, shaped, strict=True))

    def operator(self, point: Tensor) -> LinearOperator:
        return operator_at(self._function, self.parameters(point)).scaled(1 / self.unit)

    def gradients(self, point: Tensor, U: Tensor, V: Tensor) -> Tensor:
        op = self.operator(point)
        rows = []
        for u, v in zip(op.output_tensor(U), op.input_tensor(V), strict=True):
            gradient = op.pullback(u, v)
            rows.append(torch.cat([gradient[name].flatten() for name in self.names]))
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
        n = here.shape[1]
        if n > ESTIMATED_BEYOND:
            generator = torch.Generator("cpu").manual_seed(0)
            rows = torch.randn(ESTIMATING_ROWS, n, generator=generator, device="cpu").to(point)
            change = here.forward_rows(rows) - there.forward_rows(rows)
            return float(change.norm()) / math.sqrt(ESTIMATING_ROWS)
        basis = torch.eye(n, device=point.device, dtype=point.dtype).split(64)
        changes = (here.forward_rows(rows) - there.forward_rows(rows) for rows in basis)
        return math.sqrt(sum(float(change.square().sum()) for change in changes))

    def scaled(self, point: Tensor, factor: float) -> Tensor:
        """By the degree in which M depends on the parameters, where it has one."""
        generator, n = torch.Generator("cpu").manual_seed(0), math.prod(self._function.in_shape)
        row = torch.randn(1, n, generator=generator, device="cpu").to(point)
        sizes = [float(self.operator(t * point).forward_rows(row).norm()) for t in (1.0, 0.5, 0.25)]
        if min(sizes) <= 0:
            return point * factor
        degree = math.log2(sizes[0] / sizes[1])
        has_degree = abs(math.log2(sizes[1] / sizes[2]) - degree) < 1e-2 and degree > 0.5
        return point * factor ** (1 / degree if has_degree else 1)


def free_weights(
    op: LinearOperator, move: Move, unit: float, metric: PlainMetric | None = None
) -> FreeWeights:
    """What moves in a layer, in the form that knows most; its distances by `metric`, if given."""
    names = moving_names(op, move)
    plain = plain_weight(op.function, names)
    if plain is None:
        return GenericWeights(op.function, names, unit)
    return MergedWeight(op.function, plain, unit, metric)
