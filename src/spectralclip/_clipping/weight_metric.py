"""`D = A* A` for the one weight of a layer that moves, whatever the layer.

A takes a change of the weight to the change of the layer's operator. Dense layers, convolutions
and batch norms have D in closed form, also between batch norms that stay as they are. For other
layers D is applied by evaluating the layer at every basis vector of its input, and inverted by
conjugate gradients; that needs nothing but an operator that is affine in the weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, final

import torch
from torch import Tensor, nn

from spectralclip._clipping.tap_metric import TapMetric
from spectralclip._common import Shape
from spectralclip._linalg import sent
from spectralclip._operators import AffineFunction, LinearMap, as_operator

LARGEST_PROBED = 4096
_ITERATIONS = 200
_NUMBERS_AT_ONCE = 2**22


class WeightMetric(Protocol):
    """`D = A* A` on the weight that moves."""

    def apply(self, weights: Tensor, /) -> Tensor:
        """`D W`."""
        ...

    def solve(self, weights: Tensor, /) -> Tensor:
        """`D^-1 W`, zero where the operator does not depend on the weight."""
        ...


def weight_metric(function: AffineFunction, name: str) -> WeightMetric:
    """D for the parameter of that name, in closed form where there is one.

    Raises:
        ValueError: The operator is not affine in the parameter, or the layer is too large for
            want of a closed form.
    """
    return _closed_form(function, name) or ProbedMetric(function, name)


def _closed_form(function: AffineFunction, name: str) -> WeightMetric | None:
    """D for one known layer between batch norms; None for everything else."""
    places = [i for i, stage in enumerate(function.stages) if name in stage.parameters.values()]
    layer, place = function.stages[places[0]].layer, places[0]
    # A parametrized layer computes its weight: the parameter is another tensor. (Not to be asked
    # of `layer.weight`, which would compute it, and may write into buffers.)
    own_parameters = layer._parameters if isinstance(layer, nn.Module) else {}
    if len(places) > 1 or own_parameters.get("weight") is not function.parameters[name]:
        return None
    maps: list[LinearMap] = []
    for stage, shape in zip(function.stages, function.shapes[:-1], strict=True):
        part = as_operator(stage.layer, shape, dtype=function.dtype, device=function.device)
        maps.extend(part.maps)
    if len(maps) != len(function.stages):
        return None
    before, after = _channel_factors(maps[:place]), _channel_factors(maps[:place:-1])
    own = maps[place]
    if before is None or after is None:
        return None
    conv = own.convolution
    if conv is not None:
        sides = (before, after) if own.is_transposed else (after, before)
        return TapMetric(conv, *map(_product, sides))
    return _diagonal(own, layer, _product(before), _product(after))


def _channel_factors(outside_in: Sequence[LinearMap]) -> list[Tensor] | None:
    """The factors of the batch norms on one side of the layer; None if there is more."""
    factors: list[Tensor] = []
    for map_ in outside_in:
        if map_.channel_factors is not None:
            factors.append(map_.channel_factors)
        elif not map_.is_identity or (factors and map_.source != map_.target):
            return None  # what reshapes may lie outside all batch norms, not inside one
    return factors


def _product(factors: Sequence[Tensor]) -> Tensor | None:
    return math.prod(factors[1:], start=factors[0]) if factors else None


@final
class DiagonalMetric:
    """D that multiplies each entry of the weight."""

    def __init__(self, scale: Tensor) -> None:
        self._scale = scale

    def apply(self, weights: Tensor, /) -> Tensor:
        """`D W`."""
        return weights * self._scale

    def solve(self, weights: Tensor, /) -> Tensor:
        """`D^-1 W`."""
        safe = torch.where(self._scale > 0, self._scale, 1.0)
        return torch.where(self._scale > 0, weights / safe, 0.0)


def _diagonal(
    own: LinearMap, layer: object, before: Tensor | None, after: Tensor | None
) -> WeightMetric | None:
    """D of a dense layer, an embedding or a batch norm: how often and how scaled an entry acts."""
    if own.weight is None:
        return None
    ones = own.with_weight(torch.ones_like(own.weight))
    if own.channel_factors is not None:
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return None
        assert layer.running_var is not None
        deviation = (
            sent(layer.running_var, own.weight.device, own.weight.dtype) + layer.eps
        ).sqrt()
        before = 1 / deviation if before is None else before / deviation
    scaled = ones.scaled(after, before)
    if scaled is None or scaled.weight is None:
        return None
    copies = own.source.size // (own.weight.shape[-1])
    scale = copies * scaled.weight.square()
    return DiagonalMetric(scale.T if isinstance(layer, nn.Embedding) else scale)


@final
class ProbedMetric:
    """D through the layer's own forward and weight gradient at every basis vector."""

    def __init__(self, function: AffineFunction, name: str) -> None:
        self._function, self._name = function, name
        self._require_affine()
        inputs = math.prod(function.in_shape)
        if inputs > LARGEST_PROBED:
            raise ValueError(
                f"{function.name} has {inputs} inputs and no closed form of its metric, so that at "
                f"most {LARGEST_PROBED} are feasible. Use a smaller in_shape, or a plain dense "
                "layer, convolution or batch norm."
            )
        step = max(1, _NUMBERS_AT_ONCE // max(inputs, math.prod(function.out_shape)))
        self._batches = torch.arange(inputs, device=function.device).split(step)

    def apply(self, weights: Tensor, /) -> Tensor:
        """`D W`: the gradient of half the squared norm of `A W`, over all basis vectors."""
        total = torch.zeros_like(weights)
        for batch in self._batches:
            x = self._function.zeros(len(batch))
            x.flatten(1)[torch.arange(len(batch), device=x.device), batch] = 1.0
            with torch.enable_grad():
                leaf = weights.detach().requires_grad_()
                change = self._image(leaf, x) - self._image(torch.zeros_like(leaf), x)
                (gradient,) = torch.autograd.grad(change.square().sum() / 2, leaf)
            total += gradient
        return total

    def solve(self, weights: Tensor, /) -> Tensor:
        """`D^-1 W` by conjugate gradients, which stay in the range of D."""
        solution, residual = torch.zeros_like(weights), weights.clone()
        direction, size = residual.clone(), float(residual.square().sum())
        tolerance = 1e-13 if weights.dtype == torch.float64 else 1e-5
        goal = tolerance**2 * size
        for _ in range(_ITERATIONS):
            if size <= goal:
                return solution
            image = self.apply(direction)
            length = size / float(torch.sum(direction * image))
            solution += length * direction
            residual -= length * image
            previous, size = size, float(residual.square().sum())
            direction = residual + size / previous * direction
        raise ValueError(
            f"Conjugate gradients did not reach {tolerance:g} in {_ITERATIONS} iterations for "
            f"{self._name!r} of {self._function.name}: its entries act on too different scales. "
            "Rescale the layer, or pass a plain one."
        )

    def _image(self, weight: Tensor, x: Tensor) -> Tensor:
        """`M(W) x` for another weight."""
        function, values = self._function, {self._name: weight}
        offset = function(function.zeros(1), values)
        return (function(function.gain * x, values) - offset) / function.gain

    @torch.no_grad()
    def _require_affine(self) -> None:
        function, weight = self._function, self._function.values[self._name]
        generator = torch.Generator("cpu").manual_seed(0)

        def random(shape: Shape) -> Tensor:
            drawn = torch.randn(shape, generator=generator, dtype=weight.dtype, device="cpu")
            return drawn.to(weight.device)

        x = random((1, *function.in_shape))
        size = weight.square().mean().sqrt().clamp_min(1e-30)
        one, other = (size * random(tuple(weight.shape)) for _ in range(2))
        points = [weight, weight + one, weight + other, weight + one + other]
        here, there, elsewhere, both = (self._image(point, x) for point in points)
        origin, twice = self._image(torch.zeros_like(weight), x), self._image(2 * weight, x)
        scale = float((there - here).norm() + (elsewhere - here).norm() + here.norm())
        defects = (both - there - elsewhere + here).norm(), (twice - 2 * here + origin).norm()
        tolerance = 1e-6 if weight.dtype == torch.float64 else 2e-3
        if not all(float(defect) <= tolerance * scale for defect in defects):  # NaN counts too
            raise ValueError(
                f"The operator of {function.name} is not affine in its parameter {self._name!r}, "
                "expected one that is. Pass one layer at a time, each used once, and remove "
                "parametrizations first."
            )
