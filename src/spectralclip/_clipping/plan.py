"""What moves when a layer is clipped, and plain layers as one map in a single weight.

A plain layer with batch norms beside it is taken with their factors multiplied in, which turns the
composition into a plain layer again; they are divided out at the end.
"""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._linalg import sent
from spectralclip._operators import AffineFunction, LinearMap, LinearOperator, Stage, explicit_maps

Move = Literal["first", "all"]
NEXT_TO_NOTHING = 1e-4


@final
class Plan:
    """A plain layer with the factors of the batch norms beside it multiplied in.

    Attributes:
        map: The whole as one map, divided by `unit`.
        unit: A power of two.
    """

    def __init__(
        self,
        function: AffineFunction,
        name: str,
        map_: LinearMap,
        scale: Tensor | None,
        unit: float,
        *,
        flip: bool = False,
    ) -> None:
        self.unit = unit
        # Divided even where the unit is one: the layer's own memory will change.
        assert map_.weight is not None
        self.map = map_.with_weight(map_.weight / unit)
        self._name, self._scale, self._flip = name, scale, flip
        self._original = None if scale is None else function.values[name].clone()

    def parameters(self, weight: Tensor) -> dict[str, Tensor]:
        """The layer's own weight."""
        if self._scale is None or self._original is None:
            own = weight * self.unit
            return {self._name: own.T if self._flip else own}
        # A channel that a batch norm all but switches off stays as it is: dividing by next to
        # nothing would blow rounding up.
        alive = self._scale.abs() > NEXT_TO_NOTHING * self._scale.abs().max()
        own = weight * (self.unit / torch.where(alive, self._scale, 1.0))
        original = self._original.T if self._flip else self._original
        own = torch.where(alive, own, original)
        return {self._name: own.T if self._flip else own}


def moving_names(op: LinearOperator, function: AffineFunction, move: Move) -> list[str]:
    """The parameters that move: those M depends on, of the first layer or of all.

    Batch norms make way for what they normalize: with "first", one moves only where nothing
    else can.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    v = torch.randn(op.in_shape, generator=generator, device="cpu")
    u = torch.randn(op.out_shape, generator=generator, device="cpu")
    gradient = op.pullback(u, v) if op.parameters else {}
    depends = [name for name, value in gradient.items() if bool((value != 0).any())]
    if not depends:
        raise ValueError(
            f"{op.name} has no parameters that its norm depends on: there is nothing to clip."
        )
    if move == "all":
        return depends
    norms = nn.modules.batchnorm._BatchNorm
    for is_norm in (False, True):
        for stage in function.stages:
            own = [name for name in depends if name in stage.parameters.values()]
            if own and isinstance(stage.layer, norms) == is_norm:
                return own
    return depends


def plan(function: AffineFunction, names: list[str], unit: float) -> Plan | None:
    """The layer as one plain map in a single weight, where it is one."""
    if len(names) != 1:
        return None
    (name,) = names
    users = [stage for stage in function.stages if name in stage.parameters.values()]
    if len(users) != 1 or not _is_own_weight(users[0], name):
        return None
    position = function.stages.index(users[0])
    maps = explicit_maps(function)
    if maps is None:
        return None
    core = maps[position]
    kept = [map_ for map_ in maps if map_ is core or not _is_idle(map_)]
    while kept[0].is_identity and kept[0] is not core:
        kept.pop(0)  # reshaping at either end changes no singular value
    while kept[-1].is_identity and kept[-1] is not core:
        kept.pop()
    place = kept.index(core)
    factors = [map_ for map_ in kept if map_ is not core]
    if any(map_.channel_factors is None for map_ in factors):
        return None
    before, after = (
        _product([map_.channel_factors for map_ in part if map_.channel_factors is not None])
        for part in (kept[:place], kept[place + 1 :])
    )
    return _merged_plan(function, name, users[0].layer, core, before, after, unit)


def _is_own_weight(stage: Stage, name: str) -> bool:
    own = [key for key, whole in stage.parameters.items() if whole == name]
    return (
        own == ["weight"]
        and isinstance(stage.layer, nn.Module)
        and not is_parametrized(stage.layer)
    )


def _is_idle(map_: LinearMap) -> bool:
    return map_.is_identity and map_.keeps_positions


def _product(factors: list[Tensor]) -> Tensor | None:
    if not factors:
        return None
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total


def _merged_plan(
    function: AffineFunction,
    name: str,
    layer: Any,
    core: LinearMap,
    before: Tensor | None,
    after: Tensor | None,
    unit: float,
) -> Plan | None:
    flip = isinstance(layer, nn.Embedding)
    own = core.with_weight(function.values[name]) if core.channel_factors is not None else core
    if core.channel_factors is not None:
        # The parameter is gamma: the running variance belongs to the factors.
        deviation = torch.sqrt(
            sent(layer.running_var, core.channel_factors.device, core.channel_factors.dtype)
            + layer.eps
        )
        before = 1 / deviation if before is None else before / deviation
    if before is None and after is None:
        return Plan(function, name, own, None, unit, flip=flip) if own.weight is not None else None
    if own.weight is None:
        return None
    merged = own.scaled(after, before)
    factors = own.with_weight(torch.ones_like(own.weight)).scaled(after, before)
    if merged is None or factors is None:
        return None
    return Plan(function, name, merged, factors.weight, unit, flip=flip)
