"""Layers in plain words: what they are and how large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._common import Shape
from spectralclip._models import unhooked

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_CONV = nn.modules.conv._ConvNd
_TRANSPOSED = nn.modules.conv._ConvTransposeNd


def kind_of(modules: Sequence[nn.Module]) -> str:
    """The types of the modules: "Conv2d + BatchNorm2d"."""
    return " + ".join(map(type_name, modules))


def type_name(module: nn.Module) -> str:
    """The name of the class that was written down."""
    cls = type(unhooked(module))  # fully_shard makes a class of its own from that of the module
    return (cls.__mro__[1] if is_parametrized(module) else cls).__name__  # and so does this


def geometry_of(modules: Sequence[nn.Module], in_shape: Shape, out_shape: Shape) -> str:
    """Sizes and paddings: "64 -> 128, 3x3, stride 2, padding 1 zeros; 128 channels"."""
    known = [_geometry(module) for module in modules]
    if not any(known):
        return f"{_sides(in_shape)} -> {_sides(out_shape)}"
    words = (one or type_name(part) for one, part in zip(known, modules, strict=True))
    return "; ".join(words)


def _geometry(module: Any) -> str:
    """A module in plain words; empty for types that are not known."""
    if isinstance(module, _CONV):
        return _conv_geometry(module)
    if isinstance(module, nn.Linear):
        return f"{module.in_features} -> {module.out_features}"
    if isinstance(module, nn.Embedding):
        return f"{module.num_embeddings} tokens -> {module.embedding_dim}"
    if isinstance(module, _BATCH_NORM):
        return f"{module.num_features} channels"
    return ""


def _conv_geometry(conv: Any) -> str:
    transposed = isinstance(conv, _TRANSPOSED)
    kernel = f"{_sides(conv.kernel_size)} transposed" if transposed else _sides(conv.kernel_size)
    words = [f"{conv.in_channels} -> {conv.out_channels}", kernel]
    for name, usual in (("stride", 1), ("dilation", 1)):
        if any(size != usual for size in getattr(conv, name)):
            words.append(f"{name} {_equal_sides(getattr(conv, name))}")
    if isinstance(conv.padding, str) or any(conv.padding):
        words.append(f"padding {_equal_sides(conv.padding)} {conv.padding_mode}")
    if any(conv.output_padding):
        words.append(f"output padding {_equal_sides(conv.output_padding)}")
    if conv.groups > 1:
        depthwise = conv.groups == conv.in_channels
        words.append("depthwise" if depthwise else f"{conv.groups} groups")
    return ", ".join(words)


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _equal_sides(sizes: Sequence[int] | str) -> str:
    """One number where all are the same."""
    if isinstance(sizes, str):
        return sizes
    return str(sizes[0]) if len(set(sizes)) == 1 else _sides(sizes)
