"""From layers to maps: which layers have an explicit form, and how neighbours merge.

Any layer can be applied through autograd; dense layers, convolutions, batch norms and embeddings
have faster explicit forms. Neighbouring maps are merged where that costs nothing: a batch norm
after or before a convolution only scales its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._affine import AffineFunction, Shape, Stage, describe, evaluation_mode
from spectralclip._maps import (
    AutogradMap,
    ConvGeometry,
    ConvMap,
    DenseMap,
    DiagonalMap,
    IdentityMap,
    LinearMap,
    TransposedMap,
)
from spectralclip._precision import sent

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
KNOWN_AFFINE = (
    *(nn.Linear, nn.Embedding, nn.Identity, nn.Flatten, nn.Unflatten),
    *(_CONVS + _TRANSPOSED + _BATCH_NORMS + _DROPOUTS),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.PixelShuffle, nn.PixelUnshuffle),
)


def is_plain(layer: Any, *types: type[nn.Module]) -> bool:
    """Whether a module is of such a type and computes just what the type does.

    Subclasses count while they keep the type's `forward` (as parametrized modules do); hooks
    may change anything, so a module that carries some does not count.
    """
    if not isinstance(layer, types) or isinstance(layer, torch.jit.ScriptModule):
        return False
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    hooked_globally = module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks
    if hooked or hooked_globally or "forward" in vars(layer):
        return False
    cls = type(layer)
    return any(
        cls.forward is base.forward
        and getattr(cls, "_conv_forward", None) is getattr(base, "_conv_forward", None)
        for base in types
        if isinstance(layer, base)
    )


def known_affine(stage: Stage) -> bool:
    """Whether a stage is affine by its type, so that no test at random points is needed."""
    layer = stage.layer
    if is_plain(layer, *_BATCH_NORMS):
        return layer.running_mean is not None  # type: ignore[union-attr]
    return is_plain(layer, *KNOWN_AFFINE)


def build_maps(function: AffineFunction) -> list[LinearMap]:
    """The maps of a function's stages: explicit ones where there are, merged where possible."""
    maps: list[LinearMap] = []
    pending = 0  # where a run of stages without an explicit map began
    for index, stage in enumerate(function.stages):
        hint = maps[-1].target.channels_last if maps and pending == index else False
        explicit = _explicit_map(function, index, stage, hint)
        if explicit is None:
            continue
        if pending < index:
            maps.append(AutogradMap(function, pending, index))
        maps.append(explicit)
        pending = index + 1
    if pending < len(function.stages):
        maps.append(AutogradMap(function, pending, len(function.stages)))
    return merge(maps)


def explicit_maps(function: AffineFunction) -> list[LinearMap] | None:
    """One explicit map for each stage, unmerged; None where a stage has none."""
    maps: list[LinearMap] = []
    for index, stage in enumerate(function.stages):
        hint = maps[-1].target.channels_last if maps else False
        explicit = _explicit_map(function, index, stage, hint)
        if explicit is None:
            return None
        maps.append(explicit)
    return maps


def merge(maps: Sequence[LinearMap]) -> list[LinearMap]:
    """Absorb identities, and diagonals into the convolution or matrix next to them."""
    merged: list[LinearMap] = []
    for map_ in maps:
        if isinstance(map_, IdentityMap) and map_.source == map_.target and len(maps) > 1:
            continue
        together = _merged_pair(merged[-1], map_) if merged else None
        if together is None:
            merged.append(map_)
        else:
            merged[-1] = together
    return merged or [maps[0]]


def _merged_pair(first: LinearMap, second: LinearMap) -> LinearMap | None:
    if isinstance(first, ConvMap) and isinstance(second, DiagonalMap):
        return first.scaled(rows=second.factors)
    if isinstance(first, DiagonalMap) and isinstance(second, ConvMap):
        return second.scaled(columns=first.factors)
    if isinstance(first, DenseMap) and isinstance(second, DiagonalMap) and not first.leading:
        return DenseMap(first.weight * second.factors[:, None])
    if isinstance(first, DiagonalMap) and isinstance(second, DenseMap) and not second.leading:
        return DenseMap(second.weight * first.factors)
    return None


def _explicit_map(
    function: AffineFunction, index: int, stage: Stage, channels_last_hint: bool
) -> LinearMap | None:
    layer: Any = stage.layer
    if _computes_weight_in_half(function, layer):
        return None
    source, target = function.shapes[index], function.shapes[index + 1]
    if is_plain(layer, nn.Linear):
        return DenseMap(_weight(function, layer), source[:-1])
    if is_plain(layer, nn.Embedding) and layer.max_norm is None:
        return DenseMap(_weight(function, layer).T.contiguous(), source[:-1])
    if is_plain(layer, *_CONVS):
        return _conv_map(function, layer, source)
    if is_plain(layer, *_TRANSPOSED):
        return _conv_transpose_map(function, layer, source, target)
    if is_plain(layer, *_BATCH_NORMS) and layer.running_var is not None:
        return DiagonalMap(_batch_norm_factors(function, layer), source, channels_last_hint)
    if is_plain(layer, nn.Identity, nn.Flatten, nn.Unflatten, *_DROPOUTS):
        return IdentityMap(source, target, channels_last_hint)
    return None


def _computes_weight_in_half(function: AffineFunction, layer: Any) -> bool:
    """A parametrization in half precision: the general path evaluates it in the full one."""
    return (
        isinstance(layer, nn.Module)
        and is_parametrized(layer)
        and any(parameter.dtype != function.dtype for parameter in layer.parameters())
    )


def _weight(function: AffineFunction, layer: Any) -> Tensor:
    """The weight as the layer uses it: parametrizations are evaluated, once."""
    with torch.no_grad(), evaluation_mode([layer]):
        weight: Tensor = layer.weight
        return sent(weight.detach(), function.device, function.dtype)


def _batch_norm_factors(function: AffineFunction, layer: Any) -> Tensor:
    factors: Tensor = torch.rsqrt(
        sent(layer.running_var, function.device, function.dtype) + layer.eps
    )
    if not bool(torch.isfinite(factors).all()):
        raise ValueError(
            f"{describe(layer)} has a running variance that is not positive, so that its scale is "
            "NaN or infinite. Restore its running statistics."
        )
    return factors * _weight(function, layer) if layer.weight is not None else factors


def _likes_channels_last(weight: Tensor, in_shape: Shape) -> bool:
    # Measured on CPUs in float32, where it gains up to a factor of two except on the smallest
    # images; other devices and precisions keep torch's own order.
    measured = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.ndim <= 4
    return measured and math.prod(in_shape[1:]) >= 64


def _conv_map(function: AffineFunction, layer: Any, in_shape: Shape) -> ConvMap | None:
    weight = _weight(function, layer)
    axes = weight.ndim - 2
    if len(in_shape) != axes + 1:
        return None
    if layer.padding == "valid":
        before = after = (0,) * axes
    elif layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        before = tuple(t // 2 for t in total)
        after = tuple(t - t // 2 for t in total)
    else:
        before = after = tuple(layer.padding)
    geometry = ConvGeometry(
        layer.stride, layer.dilation, before, after, layer.groups, layer.padding_mode
    )
    return ConvMap(weight, geometry, in_shape, channels_last=_likes_channels_last(weight, in_shape))


def _conv_transpose_map(
    function: AffineFunction, layer: Any, in_shape: Shape, out_shape: Shape
) -> LinearMap | None:
    """A transposed convolution is the transpose of the convolution with the same weight."""
    weight = _weight(function, layer)
    padding = tuple(layer.padding)
    geometry = ConvGeometry(layer.stride, layer.dilation, padding, padding, layer.groups)
    channels_last = _likes_channels_last(weight, out_shape)
    conv = ConvMap(weight, geometry, out_shape, channels_last=channels_last)
    # With an output padding of a stride or more the convolution would see one window too many.
    return TransposedMap(conv) if conv.target.shape == in_shape else None
