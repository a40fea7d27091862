"""Which way suits a layer best, and layers of equal shape put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import nn

from spectralclip._bounds import embedding_sides
from spectralclip._models import FoundLayer
from spectralclip._operators import TRANSPOSED, ConvMap, as_operator
from spectralclip._training.engine.constrained_layer import BatchNorm, Slot
from spectralclip._training.engine.constraints import (
    Keeping,
    KeptByClamp,
    KeptByImages,
    KeptByWaves,
    KeptExactly,
)
from spectralclip._training.engine.cut_step import Stripping
from spectralclip._training.engine.fourier_modes import WIDTH, WaveGroup
from spectralclip._training.engine.full_vectors import ImageKeeper
from spectralclip._training.engine.mode_tracker import Frequencies, Taps
from spectralclip._training.engine.norm_check import NormCheck, seeded

# Kernels of so many numbers are put together into one tensor; larger ones are worth a call each.
STACKED = 2**16
# Matrices are decomposed at each step up to this size of their smaller side, and beyond it
# followed by so many vectors.
DECOMPOSED, WIDE = 512, 16

Places: TypeAlias = tuple[Taps, Frequencies, int]


def keepings(layers: Mapping[str, FoundLayer], strip: Stripping, seed: int) -> list[Keeping]:
    """What keeps each of the layers, in the order of the layers.

    Args:
        layers: With plain weights.
        strip: What is called with a parameter that was clipped, to look after its momentum.
        seed: For the random vectors.
    """
    found: list[Keeping] = []
    together: dict[Any, list[Slot]] = {}
    taken: set[int] = set()
    for name, layer in layers.items():
        origin = f"{seed}, {name}"
        slot = Slot.of(layer)
        if isinstance(layer.modules[0], BatchNorm) and len(layer.modules) == 1:
            found.append(KeptByClamp(name, layer.modules[0]))
        elif slot is not None and _is_matrix(slot):
            found.append(KeptExactly(slot, strip, origin))
        elif slot is not None and (key := _shape_key(slot)) is not None:
            # A weight that two layers share must not be there twice.
            is_shared = id(slot.weight) in taken
            taken.add(id(slot.weight))
            alone = name if is_shared or slot.weight.numel() > STACKED else ""
            together.setdefault((alone, key), []).append(slot)
        else:
            found.append(_by_images(layer, slot, strip, origin))
    return found + [_by_waves(slots, layers, strip, seed) for slots in together.values()]


def _by_images(layer: FoundLayer, slot: Slot | None, strip: Stripping, origin: str) -> Keeping:
    keepers = [
        ImageKeeper(layer.modules, slot, shape, strip, seeded(f"{origin}, {shape}"))
        for shape in layer.in_shapes
    ]
    check = NormCheck(layer.modules, layer.in_shapes, origin)
    conv = None if slot is None else _conv(slot)
    if slot is None or conv is None or isinstance(slot.module, TRANSPOSED):
        return KeptByImages(layer.name, keepers, check, None, 1)
    taps, frequencies, width = _places(slot)
    waves = WaveGroup([slot], taps, frequencies, strip, [seeded(origin)], width)
    application = math.prod(conv.target.shape[1:]) * slot.weight.numel()
    return KeptByImages(layer.name, keepers, check, waves, application)


def _by_waves(
    slots: list[Slot], layers: Mapping[str, FoundLayer], strip: Stripping, seed: int
) -> Keeping:
    taps, frequencies, width = _places(slots[0])
    generators = [seeded(f"{seed}, {slot.name}") for slot in slots]
    group = WaveGroup(slots, taps, frequencies, strip, generators, width)
    checks = {
        slot.name: NormCheck(layers[slot.name].modules, slot.in_shapes, f"{seed}, {slot.name}")
        for slot in slots
    }
    return KeptByWaves(group, checks, _conv(slots[0]))


def _is_matrix(slot: Slot) -> bool:
    """Whether the singular values can be set one by one, and are few enough for that."""
    if slot.norm is not None:
        return False
    conv = _conv(slot)
    if not isinstance(slot.module, nn.Linear) and (conv is None or not conv.has_separate_windows):
        return False
    kernels = slot.kernels()
    return min(kernels.shape[1], kernels.shape[2] * kernels.shape[3]) <= DECOMPOSED


def _shape_key(slot: Slot) -> Any:
    """What layers must have in common to be followed together; None if not by plane waves."""
    module, weight = slot.module, slot.weight
    kind: Any = (tuple(weight.shape), weight.dtype, weight.device, slot.norm is None)
    if isinstance(module, nn.Linear):
        return kind
    conv = _conv(slot)
    if conv is None or conv.geometry.mode not in ("zeros", "circular"):
        return None
    geometry = conv.geometry
    uneven = any(n % s for n, s in zip(conv.source.shape[1:], geometry.stride, strict=True))
    if geometry.mode == "circular" and uneven:
        return None  # the windows do not close around such a torus
    return (*kind, type(module), geometry, slot.in_shapes, slot.gamma is None)


def _places(slot: Slot) -> Places:
    """Where to look for a layer: the grid of its own torus where that is small."""
    conv = _conv(slot)
    if conv is None:
        return Taps.of((1,), (1,), (1,)), Frequencies.on_grid((1,)), WIDE
    geometry = conv.geometry
    taps = Taps.of(tuple(conv.weight.shape[2:]), geometry.stride, geometry.dilation)
    if taps.do_not_overlap:
        return taps, Frequencies.on_grid((1,) * len(geometry.stride)), WIDE
    everywhere = Frequencies.everywhere(taps)
    if len(slot.in_shapes) > 1:
        return taps, everywhere, WIDTH
    circular = geometry.mode == "circular"
    sides = tuple(conv.source.shape[1:]) if circular else embedding_sides(conv)
    grid = Frequencies.on_grid(
        tuple(side // step for side, step in zip(sides, geometry.stride, strict=True))
    )
    return taps, min(grid, everywhere, key=lambda places: len(places.centers)), WIDTH


def _conv(slot: Slot) -> ConvMap | None:
    """The convolution that a layer is or is the transpose of, at its first input shape."""
    return as_operator(slot.module, slot.in_shapes[0]).convolution
