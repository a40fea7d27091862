"""From layers to maps: which layers have an explicit form, and how neighbours merge.

Any layer can be applied through autograd; dense layers, convolutions, batch norms and embeddings
have faster explicit forms. Neighbouring maps are merged where that costs nothing: a batch norm
after or before a convolution only scales its weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._common import Shape
from spectralclip._linalg import sent
from spectralclip._operators.affine import AffineFunction
from spectralclip._operators.contexts import evaluation_mode
from spectralclip._operators.factor import Factor
from spectralclip._operators.maps import (
    AutogradMap,
    ConvGeometry,
    ConvMap,
    DenseMap,
    DiagonalMap,
    IdentityMap,
    LinearMap,
    TransposedMap,
)
from spectralclip._operators.module_types import (
    BATCH_NORMS,
    CONVS,
    DROPOUTS,
    TRANSPOSED,
    batch_norm_scale,
    conv_paddings,
    describe,
    is_conv1d,
    is_plain,
)
from spectralclip._operators.rows import Rows
from spectralclip._operators.running_norms import RunningShift


class Site(NamedTuple):
    """Where a layer stands: the shapes on both sides, and the order of memory that it gets."""

    function: AffineFunction
    source: Shape
    target: Shape
    channels_last: bool

    def weight(self, layer: Any) -> Tensor:
        """The weight as the layer uses it: parametrizations are evaluated, once."""
        with torch.no_grad(), evaluation_mode([layer]):
            weight: Tensor = layer.weight
            return sent(weight.detach(), self.function.device, self.function.dtype)


def build_maps(function: AffineFunction) -> list[LinearMap]:
    """The maps of a function's stages: explicit ones where there are, merged where possible."""
    maps: list[LinearMap] = []
    runs = itertools.groupby(enumerate(_stage_maps(function)), lambda pair: pair[1] is None)
    for has_none, run in runs:
        places, explicit = zip(*run, strict=True)
        if has_none:
            maps.append(AutogradMap(function, places[0], places[-1] + 1))
        else:
            maps.extend(explicit)
    return merge(maps)


def explicit_maps(function: AffineFunction) -> list[LinearMap] | None:
    """One explicit map for each stage, unmerged; None where a stage has none."""
    maps = [map_ for map_ in _stage_maps(function) if map_ is not None]
    return maps if len(maps) == len(function.stages) else None


def _stage_maps(function: AffineFunction) -> list[LinearMap | None]:
    """The explicit map of each stage, for the weights that the layer has now."""
    maps: list[LinearMap | None] = []
    for index, stage in enumerate(function.stages):
        layer: Any = stage.layer
        before = maps[-1] if maps else None
        site = Site(
            function,
            function.shapes[index],
            function.shapes[index + 1],
            before is not None and before.target.channels_last,
        )
        make = next((make for types, make in SHORTCUTS if is_plain(layer, *types)), None)
        if make is None and is_conv1d(layer):  # whose type is not ours to import
            make = _transposed_dense
        if make is None or _computes_weight_in_half(function, layer):
            maps.append(None)
        else:
            maps.append(make(site, layer))
    return maps


def merge(maps: Sequence[LinearMap]) -> list[LinearMap]:
    """Absorb identities, and diagonals into the convolution or matrix next to them."""
    merged: list[LinearMap] = []
    for map_ in maps:
        if map_.is_identity and map_.source == map_.target and len(maps) > 1:
            continue
        together = _merged_pair(merged[-1], map_) if merged else None
        if together is None:
            merged.append(map_)
        else:
            merged[-1] = together
    return merged or [maps[0]]


def _merged_pair(first: LinearMap, second: LinearMap) -> LinearMap | None:
    if second.channel_factors is not None:
        return first.scaled(second.channel_factors, None)
    if first.channel_factors is not None:
        return second.scaled(None, first.channel_factors)
    return None


def _computes_weight_in_half(function: AffineFunction, layer: Any) -> bool:
    """A parametrization in half precision: the general path evaluates it in the full one."""
    return (
        isinstance(layer, nn.Module)
        and is_parametrized(layer)
        and any(parameter.dtype != function.dtype for parameter in layer.parameters())
    )


def _transposed_dense(site: Site, layer: Any) -> LinearMap | None:
    return DenseMap(site.weight(layer).T.contiguous(), site.source[:-1])


def _embedding(site: Site, layer: Any) -> LinearMap | None:
    if layer.max_norm is not None:
        return None
    return DenseMap(site.weight(layer).T.contiguous(), site.source[:-1])


def _batch_norm(site: Site, layer: Any) -> LinearMap | None:
    if layer.running_var is None:
        return None
    variance = sent(layer.running_var, site.function.device, site.function.dtype)
    factors = batch_norm_scale(variance, layer.eps)
    if not bool(torch.isfinite(factors).all()):
        raise ValueError(
            f"{describe(layer)} has a running variance that is not positive, so that its scale is "
            "NaN or infinite. Restore its running statistics."
        )
    if layer.weight is not None:
        factors = factors * site.weight(layer)
    return DiagonalMap(factors, site.source, site.channels_last)


def _shift(site: Site, layer: Any) -> LinearMap | None:
    if layer.running_mean is None:
        return None
    # Factors of one rather than an identity, whose norm would be found by iteration.
    ones = torch.ones(site.source[0], device=site.function.device, dtype=site.function.dtype)
    return DiagonalMap(ones, site.source, site.channels_last)


def _likes_channels_last(weight: Tensor, in_shape: Shape) -> bool:
    # Measured on CPUs in float32, where it gains up to a factor of two except on the smallest
    # images; other devices and precisions keep torch's own order.
    measured = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.ndim <= 4
    return measured and math.prod(in_shape[1:]) >= 64


def _conv(site: Site, layer: Any) -> LinearMap | None:
    weight, in_shape = site.weight(layer), site.source
    if len(in_shape) != weight.ndim - 1:
        return None
    before, after = zip(*conv_paddings(layer), strict=True)
    geometry = ConvGeometry(
        layer.stride, layer.dilation, before, after, layer.groups, layer.padding_mode
    )
    return ConvMap(weight, geometry, in_shape, channels_last=_likes_channels_last(weight, in_shape))


def _conv_transpose(site: Site, layer: Any) -> LinearMap | None:
    """A transposed convolution is the transpose of the convolution with the same weight."""
    weight, padding = site.weight(layer), tuple(layer.padding)
    geometry = ConvGeometry(layer.stride, layer.dilation, padding, padding, layer.groups)
    channels_last = _likes_channels_last(weight, site.target)
    conv = ConvMap(weight, geometry, site.target, channels_last=channels_last)
    # With an output padding of a stride or more the convolution would see one window too many.
    return TransposedMap(conv) if conv.target.shape == site.source else None


# The layers with a map of their own. A new shortcut is a map class and a line here.
SHORTCUTS: list[tuple[tuple[type[nn.Module], ...], Callable[[Site, Any], LinearMap | None]]] = [
    ((nn.Linear, Rows, Factor), lambda site, layer: DenseMap(site.weight(layer), site.source[:-1])),
    ((nn.Embedding,), _embedding),
    (CONVS, _conv),
    (TRANSPOSED, _conv_transpose),
    (BATCH_NORMS, _batch_norm),
    ((RunningShift,), _shift),
    (
        (nn.Identity, nn.Flatten, nn.Unflatten, *DROPOUTS),
        lambda site, layer: IdentityMap(site.source, site.target, site.channels_last),
    ),
]
