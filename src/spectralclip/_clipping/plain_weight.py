"""Plain layers between batch norms, as one map in a single weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectralclip._linalg import sent
from spectralclip._operators import (
    AffineFunction,
    LinearMap,
    Rows,
    batch_norm_scale,
    explicit_maps,
    is_conv1d,
)

# A channel whose factor is below this share of the largest stays as it is: dividing by next to
# nothing would blow rounding up. At 1e-4, float32 leaves three digits.
NEXT_TO_NOTHING = 1e-4


class PlainWeight(NamedTuple):
    """The weight of a plain layer, and what the batch norms beside it multiply its entries with."""

    name: str  # the parameter
    own: LinearMap  # the layer without them, as a map in its weight
    factors: Tensor | None  # one for each entry of the weight; None where there are no batch norms
    is_flipped: bool  # whether the parameter is the transpose of the map's weight
    # Where the weight is some rows of the parameter: which, and the parameter as it was
    rows: slice | None = None
    whole: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        assert self.own.weight is not None
        return self.own.weight

    @property
    def alive(self) -> Tensor | None:
        """Which entries of the weight can be reached through their factors; None for all."""
        if self.factors is None:
            return None
        return self.factors.abs() > NEXT_TO_NOTHING * self.factors.abs().max()

    def parameter(self, weight: Tensor) -> Tensor:
        """The parameter for a weight that has the factors multiplied in."""
        alive = self.alive
        if self.factors is not None and alive is not None:
            divided = weight / torch.where(alive, self.factors, 1.0)
            weight = torch.where(alive, divided, self.weight)
        return self.placed(weight, self.whole)

    def placed(self, weight: Tensor, others: Tensor | None) -> Tensor:
        """Values for the weight as values for the parameter, whose other rows are given."""
        if self.rows is None or others is None:
            return weight.T if self.is_flipped else weight
        whole = others.clone()
        whole[self.rows] = weight
        return whole

    def written(self, parameter: Tensor) -> Tensor:
        """What of a tensor like the parameter is the weight's, as a view."""
        return parameter if self.rows is None else parameter[self.rows]


def plain_weight(function: AffineFunction, names: Sequence[str]) -> PlainWeight | None:
    """The one weight of these names, where the rest of the layer is nothing but batch norms."""
    if len(names) != 1:
        return None
    (name,) = names
    users = [i for i, stage in enumerate(function.stages) if name in stage.parameters.values()]
    layer: Any = function.stages[users[0]].layer
    rows = layer.rows if isinstance(layer, Rows) else None
    own_name = "weight" if rows is None else "whole"
    # A parametrized layer computes its weight: the parameter is another tensor.
    if len(users) > 1 or layer._parameters.get(own_name) is not function.parameters[name]:
        return None
    maps, place = explicit_maps(function), users[0]
    if maps is None or maps[place].weight is None:
        return None
    own = maps[place]
    before, after = _channel_factors(maps[:place]), _channel_factors(maps[:place:-1])
    if before is None or after is None:
        return None
    if own.channel_factors is not None:
        # The parameter is gamma: the running variance belongs to the factors.
        own = own.with_weight(function.values[name])
        variance = sent(layer.running_var, function.device, function.dtype)
        before.append(batch_norm_scale(variance, layer.eps))
    factors = None
    if before or after:
        assert own.weight is not None
        ones = own.with_weight(torch.ones_like(own.weight))
        sides = (math.prod(s[1:], start=s[0]) if s else None for s in (after, before))
        scaled = ones.scaled(*sides)
        if scaled is None:
            return None
        factors = scaled.weight
    # A copy, since the layer's own memory will change.
    assert own.weight is not None
    copied = own.with_weight(own.weight.clone())
    whole = None if rows is None else function.values[name].clone()
    is_flipped = isinstance(layer, nn.Embedding) or is_conv1d(layer)
    return PlainWeight(name, copied, factors, is_flipped, rows, whole)


def _channel_factors(outside_in: Sequence[LinearMap]) -> list[Tensor] | None:
    """The factors of the batch norms on one side of the layer; None if there is more."""
    factors: list[Tensor] = []
    for map_ in outside_in:
        if map_.channel_factors is not None:
            factors.append(map_.channel_factors)
        elif not map_.is_identity or (factors and map_.source != map_.target):
            return None  # what reshapes may lie outside all batch norms, not inside one
    return factors
