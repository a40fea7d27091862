"""Which way suits a layer best, and layers of equal shape put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import nn

from spectralclip._bounds import embedding_sides
from spectralclip._models import FoundLayer
from spectralclip._operators import TRANSPOSED, ConvMap, as_operator
from spectralclip._training.engine.constrained_layer import BatchNorm, ConstrainedLayer
from spectralclip._training.engine.constraints import (
    ClampConstraint,
    FourierConstraint,
    LayerConstraint,
    VectorConstraint,
)
from spectralclip._training.engine.cut_step import MomentumProjection
from spectralclip._training.engine.dense import ExactConstraint
from spectralclip._training.engine.fourier_modes import ModeGroup
from spectralclip._training.engine.full_vectors import VectorProjector
from spectralclip._training.engine.mode_tracker import Frequencies, Taps
from spectralclip._training.engine.norm_check import NormCheck
from spectralclip._training.engine.tuning import LAYER, MODES
from spectralclip._training.method import seeded

Places: TypeAlias = tuple[Taps, Frequencies, int]


def layer_constraints(
    layers: Mapping[str, FoundLayer], project_momentum: MomentumProjection, seed: int
) -> list[LayerConstraint]:
    """What holds each of the layers within its bound.

    Args:
        layers: With plain weights.
        project_momentum: Called with each parameter that was clipped.
        seed: For the random vectors.
    """
    made: list[LayerConstraint] = []
    together: dict[Any, list[ConstrainedLayer]] = {}
    taken: set[int] = set()
    for name, found in layers.items():
        origin = f"{seed}, {name}"
        layer = ConstrainedLayer.of(found)
        if isinstance(found.modules[0], BatchNorm) and len(found.modules) == 1:
            made.append(ClampConstraint(name, found.modules[0]))
        elif layer is not None and _is_matrix(layer):
            made.append(ExactConstraint(layer, project_momentum, origin))
        elif layer is not None and (key := _shape_key(layer)) is not None:
            # A weight that two layers share must not be there twice.
            is_shared = id(layer.weight) in taken
            taken.add(id(layer.weight))
            alone = name if is_shared or layer.weight.numel() > LAYER.stacked else ""
            together.setdefault((alone, key), []).append(layer)
        else:
            made.append(_by_vectors(found, layer, project_momentum, origin))
    groups = together.values()
    return made + [_by_modes(group, layers, project_momentum, seed) for group in groups]


def _by_vectors(
    found: FoundLayer,
    layer: ConstrainedLayer | None,
    project_momentum: MomentumProjection,
    origin: str,
) -> LayerConstraint:
    projectors = [
        VectorProjector(found.modules, layer, shape, project_momentum, seeded(f"{origin}, {shape}"))
        for shape in found.in_shapes
    ]
    check = NormCheck(found.modules, found.in_shapes, origin)
    conv = None if layer is None else _conv(layer)
    if layer is None or conv is None or isinstance(layer.module, TRANSPOSED):
        return VectorConstraint(found.name, projectors, check, None, 1)
    taps, frequencies, width = _places(layer)
    modes = ModeGroup([layer], taps, frequencies, project_momentum, [seeded(origin)], width)
    application = math.prod(conv.target.shape[1:]) * layer.weight.numel()
    return VectorConstraint(found.name, projectors, check, modes, application)


def _by_modes(
    layers: list[ConstrainedLayer],
    found: Mapping[str, FoundLayer],
    project_momentum: MomentumProjection,
    seed: int,
) -> LayerConstraint:
    taps, frequencies, width = _places(layers[0])
    generators = [seeded(f"{seed}, {layer.name}") for layer in layers]
    group = ModeGroup(layers, taps, frequencies, project_momentum, generators, width)
    checks = {
        layer.name: NormCheck(found[layer.name].modules, layer.in_shapes, f"{seed}, {layer.name}")
        for layer in layers
    }
    return FourierConstraint(group, checks, _conv(layers[0]))


def _is_matrix(layer: ConstrainedLayer) -> bool:
    """Whether the singular values can be set one by one, and are few enough for that."""
    if layer.norm is not None:
        return False
    conv = _conv(layer)
    if not isinstance(layer.module, nn.Linear) and (conv is None or not conv.has_separate_windows):
        return False
    kernels = layer.kernels()
    return min(kernels.shape[1], kernels.shape[2] * kernels.shape[3]) <= LAYER.decomposed


def _shape_key(layer: ConstrainedLayer) -> Any:
    """What layers must have in common to be followed together; None if not by Fourier modes."""
    module, weight = layer.module, layer.weight
    kind: Any = (tuple(weight.shape), weight.dtype, weight.device, layer.norm is None)
    if isinstance(module, nn.Linear):
        return kind
    conv = _conv(layer)
    if conv is None or conv.geometry.mode not in ("zeros", "circular"):
        return None
    geometry = conv.geometry
    uneven = any(n % s for n, s in zip(conv.source.shape[1:], geometry.stride, strict=True))
    if geometry.mode == "circular" and uneven:
        return None  # the windows do not close around such a torus
    return (*kind, type(module), geometry, layer.in_shapes, layer.gamma is None)


def _places(layer: ConstrainedLayer) -> Places:
    """Where the modes of a layer are: the grid of its own torus where that is small."""
    conv = _conv(layer)
    if conv is None:
        return Taps.of((1,), (1,), (1,)), Frequencies.on_grid((1,)), LAYER.wide
    geometry = conv.geometry
    taps = Taps.of(tuple(conv.weight.shape[2:]), geometry.stride, geometry.dilation)
    if taps.do_not_overlap:
        return taps, Frequencies.on_grid((1,) * len(geometry.stride)), LAYER.wide
    everywhere = Frequencies.everywhere(taps)
    if len(layer.in_shapes) > 1:
        return taps, everywhere, MODES.width
    circular = geometry.mode == "circular"
    sides = tuple(conv.source.shape[1:]) if circular else embedding_sides(conv)
    grid = Frequencies.on_grid(
        tuple(side // step for side, step in zip(sides, geometry.stride, strict=True))
    )
    return taps, min(grid, everywhere, key=lambda places: len(places.centers)), MODES.width


def _conv(layer: ConstrainedLayer) -> ConvMap | None:
    """The convolution that a layer is or is the transpose of, at its first input shape."""
    return as_operator(layer.module, layer.in_shapes[0]).convolution
