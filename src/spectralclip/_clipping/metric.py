"""How far a layer moves as an operator when its weight moves: `||M(W')-M(W)||_F^2 = <dW, D dW>`.

`D = A* A`, where A takes a change of the weight to the change of the operator. For a convolution D
is a small matrix on the taps alone: `D[t, t']` counts the windows in which the taps t and t' read
the same position. In dense layers, in batch norms and where windows do not overlap, D only counts
how often an entry is used. Batch norms on either side multiply D by the squares of their factors.
For other layers D is applied by evaluating the layer at every basis vector of its input, and
inverted by conjugate gradients; that needs nothing but an operator that is affine in the weight.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._clipping.plain_weight import plain_weight
from spectralclip._linalg import on_host, wide
from spectralclip._operators import AffineFunction, LinearMap, is_linear_in


class _Probing(NamedTuple):
    """What the metric of layers without a closed form may take."""

    # Each product evaluates the layer at all inputs: 5.5 s at this size in float64 on one core.
    most_inputs: int = 4096
    # Residual convolutions with reflected and replicated borders took 6 and 10.
    most_iterations: int = 200
    numbers_at_once: int = 2**22  # 16 MB in float32 for each tensor that autograd keeps


PROBING = _Probing()


@final
class PlainMetric:
    """D of a plain layer: a Gram matrix on the taps, times the squares of the factors beside it."""

    def __init__(self, map_: LinearMap, factors: Tensor | None = None) -> None:
        assert map_.weight is not None
        conv = map_.convolution
        if conv is None:
            uses = map_.source.size // map_.weight.shape[-1]
        else:
            uses = math.prod(conv.target.shape[1:])
        if conv is None or conv.has_separate_windows:
            self._gram = torch.full((1, 1), float(uses), dtype=torch.float64, device="cpu")
        else:
            self._gram = conv.tap_gram()
        self._squares = None if factors is None else on_host(factors).square()

    @cached_property
    def _inverse(self) -> Tensor:
        """Zero for taps that read nothing at all."""
        values, vectors = torch.linalg.eigh(self._gram)
        kept = values > 1e-10 * values.max().clamp_min(1e-300)
        inverse = torch.where(kept, 1 / values.clamp_min(1e-300), 0.0)
        solved: Tensor = (vectors * inverse) @ vectors.T
        return solved

    def apply(self, weights: Tensor) -> Tensor:
        """`D W`, for one weight or a batch of them."""
        product = self._on_taps(weights, self._gram)
        return product if self._squares is None else product * self._squares.to(weights)

    def solve(self, weights: Tensor) -> Tensor:
        """`D^-1 W`, zero where the operator does not depend on the weight; of one or a batch."""
        solution = self._on_taps(weights, self._inverse)
        if self._squares is None:
            return solution
        inverse = torch.where(self._squares > 0, 1 / self._squares.clamp_min(1e-300), 0.0)
        return solution * inverse.to(weights)

    def norm(self, weight: Tensor) -> float:
        """`||M(W)||_F`."""
        exact = wide(weight)
        return math.sqrt(max(0.0, float(torch.sum(exact * self.apply(exact)))))

    def _on_taps(self, weights: Tensor, matrix: Tensor) -> Tensor:
        rows = weights.reshape(-1, matrix.shape[0])
        return (rows @ matrix.to(weights)).reshape(weights.shape)


@final
class ProbedMetric:
    """D through the layer's own forward and weight gradient at every basis vector."""

    def __init__(self, function: AffineFunction, name: str) -> None:
        self._function, self._name = function, name
        if not is_linear_in(function, [name]):
            raise ValueError(
                f"The operator of {function.name} is not affine in its parameter {name!r}, "
                "expected one that is. Pass one layer at a time, each used once, and remove "
                "parametrizations first."
            )
        inputs = math.prod(function.in_shape)
        if inputs > PROBING.most_inputs:
            raise ValueError(
                f"{function.name} has {inputs} inputs and no closed form of its metric, so that at "
                f"most {PROBING.most_inputs} are feasible. Use a smaller in_shape, or a plain "
                "dense layer, convolution or batch norm."
            )
        step = max(1, PROBING.numbers_at_once // max(inputs, math.prod(function.out_shape)))
        self._batches = torch.arange(inputs, device=function.device).split(step)

    def apply(self, weights: Tensor) -> Tensor:
        """`D W`: the gradient of half the squared norm of `A W`, over all basis vectors."""
        total, image = torch.zeros_like(weights), self._function.linear_part
        for batch in self._batches:
            x = self._function.zeros(len(batch))
            x.flatten(1)[torch.arange(len(batch), device=x.device), batch] = 1.0
            with torch.enable_grad():
                leaf = weights.detach().requires_grad_()
                origin = image(x, {self._name: torch.zeros_like(leaf)})
                change = image(x, {self._name: leaf}) - origin
                (gradient,) = torch.autograd.grad(change.square().sum() / 2, leaf)
            total += gradient
        return total

    def solve(self, weights: Tensor) -> Tensor:
        """`D^-1 W` by conjugate gradients, which stay in the range of D."""
        solution, residual = torch.zeros_like(weights), weights.clone()
        direction, size = residual.clone(), float(residual.square().sum())
        tolerance = 1e-13 if weights.dtype == torch.float64 else 1e-5
        goal = tolerance**2 * size
        for _ in range(PROBING.most_iterations):
            if size <= goal:
                return solution
            image = self.apply(direction)
            length = size / float(torch.sum(direction * image))
            solution += length * direction
            residual -= length * image
            previous, size = size, float(residual.square().sum())
            direction = residual + size / previous * direction
        raise ValueError(
            f"Conjugate gradients did not reach {tolerance:g} in {PROBING.most_iterations} "
            f"iterations for {self._name!r} of {self._function.name}: its entries act on too "
            "different scales. Rescale the layer, or pass a plain one."
        )


def parameter_metric(function: AffineFunction, name: str) -> PlainMetric | ProbedMetric:
    """D for the parameter of that name, in closed form where there is one."""
    plain = plain_weight(function, [name])
    if plain is None:
        return ProbedMetric(function, name)
    factors = plain.factors
    if factors is not None:
        # Rows that the layer does not use have no factor.
        factors = plain.placed(factors, torch.zeros_like(function.values[name]))
    return PlainMetric(plain.own, factors)
