"""The layers of a model divided among processes, so that each has about as much to do."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torch import nn

from spectralclip._models import FoundLayer


def estimated_cost(layer: FoundLayer) -> float:
    """About what one application of the layer costs: weights times the places they are used at."""
    weights = sum(p.numel() for p in layer.parameters())
    return weights * sum(_places(layer.modules[0], shape) for shape in layer.in_shapes)


def _places(module: nn.Module, in_shape: tuple[int, ...]) -> float:
    if not isinstance(module, nn.modules.conv._ConvNd):
        return max(1, prod(in_shape[:-1]))
    return max(1.0, prod(in_shape[1:]) / (1 if module.transposed else prod(module.stride)))


def divided(
    layers: Mapping[str, FoundLayer], costs: Mapping[str, float], size: int
) -> dict[str, int]:
    """The number of the process that works on each layer.

    The costliest first, each to the process that has least to do so far. Layers that share a
    parameter go together.
    """
    places = {name: place for place, name in enumerate(layers)}
    bundles = sorted(
        _entangled(layers),
        key=lambda names: (-sum(costs[name] for name in names), places[names[0]]),
    )
    loads, owners = [0.0] * size, dict.fromkeys(layers, 0)
    for names in bundles:
        rank = loads.index(min(loads))
        loads[rank] += sum(costs[name] for name in names)
        owners.update(dict.fromkeys(names, rank))
    return owners


def _entangled(layers: Mapping[str, FoundLayer]) -> list[list[str]]:
    """Layers in bundles that have no parameter in common."""
    bundles: list[tuple[set[int], list[str]]] = []
    for name, layer in layers.items():
        ids, names = {id(p) for p in layer.parameters()}, [name]
        apart = []
        for other_ids, other_names in bundles:
            if ids & other_ids:
                ids, names = ids | other_ids, other_names + names
            else:
                apart.append((other_ids, other_names))
        bundles = [*apart, (ids, names)]
    return [names for _, names in bundles]
