"""Layers in plain words: what they are, how large, what their numbers mean and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._audit.layer import LayerAudit
from spectralclip._common import Shape
from spectralclip._models import BATCH_NORM, unhooked
from spectralclip._operators import Rows

_CONV = nn.modules.conv._ConvNd
_TRANSPOSED = nn.modules.conv._ConvTransposeNd


def kind_of(modules: Sequence[nn.Module]) -> str:
    """The types of the modules: "Conv2d + BatchNorm2d"."""
    return " + ".join(map(type_name, modules))


def type_name(module: nn.Module) -> str:
    """The name of the class that was written down."""
    if isinstance(module, Rows):
        return f"{module.owner} matrix"
    cls = type(unhooked(module))  # fully_shard makes a class of its own from that of the module
    return (cls.__mro__[1] if is_parametrized(module) else cls).__name__  # and so does this


def geometry_of(modules: Sequence[nn.Module], in_shape: Shape, out_shape: Shape) -> str:
    """Sizes and paddings: "64 -> 128, 3x3, stride 2, padding 1 zeros; 128 channels"."""
    known = [_geometry(module) for module in modules]
    if not any(known):
        return f"{_sides(in_shape)} -> {_sides(out_shape)}"
    return "; ".join(one or type_name(part) for one, part in zip(known, modules, strict=True))


def _geometry(module: Any) -> str:
    """A module in plain words; empty for types that are not known."""
    if isinstance(module, _CONV):
        return _conv_geometry(module)
    if isinstance(module, (nn.Linear, Rows)):
        return f"{module.in_features} -> {module.out_features}"
    if isinstance(module, nn.Embedding):
        return f"{module.num_embeddings} tokens -> {module.embedding_dim}"
    if isinstance(module, BATCH_NORM):
        return f"{module.num_features} channels"
    return ""


def _conv_geometry(conv: Any) -> str:
    transposed = " transposed" if isinstance(conv, _TRANSPOSED) else ""
    words = [f"{conv.in_channels} -> {conv.out_channels}", _sides(conv.kernel_size) + transposed]
    for name in ("stride", "dilation"):
        if any(size != 1 for size in getattr(conv, name)):
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
    if isinstance(sizes, str):
        return sizes
    return str(sizes[0]) if len(set(sizes)) == 1 else _sides(sizes)


# Norms this close to one are called one: measured values and clipped layers are no closer.
NEARLY = 0.02
# Where the words change, and nothing else: who follows a difference through some dozen layers has
# use neither for one that shortens it ten times, nor for one that makes it a hundred times as long.
_FADED, _SUSPICIOUS = 0.1, 100.0
_SEEN_RIGHT = 0.9, 1.1  # the norm over what torch sees of it, while nothing is said of that
_STANDS_OUT = 3.0  # over the second value; random layers of 16 to 512 channels had 1.16 at most


def compensates(layer: LayerAudit) -> bool:
    """Whether batch norm and the rest of the chain work against each other.

    Either what the rest amplifies most is what batch norm damps, so that the norms multiplied say
    more than twice too much; or the rest has been brought down to one and batch norm takes the
    chain up again, so that bounding the rest alone has not bounded the chain.
    """
    if layer.batch_norm is None or layer.linear is None:
        return False
    return layer.norm.upper < layer.linear * layer.batch_norm / 2 or _undone(layer)


def _undone(layer: LayerAudit) -> bool:
    assert layer.batch_norm is not None and layer.linear is not None
    return layer.linear <= 1 + NEARLY < layer.batch_norm and layer.norm.lower > 1 + NEARLY


def remark_on(layer: LayerAudit, chain: str) -> str:
    """The most telling things of a layer, or a part of a chain, two sentences at most."""
    if layer.norm.upper == 0:
        return "Maps every input to the same output: it passes nothing on, and may be dead."
    others = (about(layer) for about in (_about_batch_norm, _about_reshaped, _about_rank))
    sentences = (_about_norm(layer, chain), *others)
    return " ".join([sentence for sentence in sentences if sentence][:2])


def _about_norm(layer: LayerAudit, chain: str) -> str:
    interval, norm = layer.norm, _short(layer.singular_values[0])
    if interval.upper < _FADED:
        return (
            f"Shrinks every difference to {_short(interval.upper)} of its length at most: little "
            "of its input gets through."
        )
    if interval.upper <= 1:
        return "Lengthens no difference between two inputs."
    if interval.upper <= 1 + NEARLY:
        percent = math.ceil(1000 * (interval.upper - 1)) / 10  # up, so that what is said holds
        return f"Lengthens differences by {percent:g} % at most: as good as one."
    if interval.lower <= 1:
        return "About one: the interval does not tell on which side; a smaller tol would."
    if chain:
        return f"Lengthens some differences {norm} times by itself; what counts is {chain}."
    if interval.lower > _SUSPICIOUS:
        return f"Lengthens some differences {norm} times: look at its weights before clipping it."
    return f"Lengthens some differences {norm} times; clip_ would bring that down to a bound."


def _about_batch_norm(layer: LayerAudit) -> str:
    if not compensates(layer):
        return ""
    assert layer.batch_norm is not None and layer.linear is not None
    apart = f"{_short(layer.linear)} without batch norm, and batch norm {_short(layer.batch_norm)}"
    if _undone(layer):
        return f"The rest alone has norm {apart}: batch norm undoes the bound, so clip the chain."
    return (
        f"The rest alone has norm {apart}, yet together only {_short(layer.singular_values[0])}: "
        "bound the chain as one, since bounds on its parts are far from what it does."
    )


def _about_reshaped(layer: LayerAudit) -> str:
    seen = layer.reshaped_norm
    if not seen or layer.batch_norm is not None:
        return ""
    ratio = layer.singular_values[0] / seen
    if _SEEN_RIGHT[0] <= ratio <= _SEEN_RIGHT[1]:
        return ""
    wrong = f"{_short(ratio)} times too large"
    if ratio < 1:
        wrong = f"{_short(1 / ratio)} times too small"
    return f"torch's spectral_norm would see {_short(seen)} and so leave it {wrong}."


def _about_rank(layer: LayerAudit) -> str:
    norm, second, *_ = (*layer.singular_values, 0.0)
    if not second or norm < _STANDS_OUT * second:
        return ""
    return f"One direction stands out: the next is amplified {_short(norm / second)} times less."


def _short(value: float) -> str:
    return f"{value:.3g}"
