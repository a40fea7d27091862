"""Layers in plain words: what they are, how large, what their numbers mean and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._bounds import Interval
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


# Norms this close to one are called one: measured values and clipped layers are no closer.
NEARLY = 0.02
_FADED, _SUSPICIOUS = 0.1, 100.0


class Numbers(NamedTuple):
    """Of a layer or chain, as in `LayerAudit`.

    `norm` is the best single number for it, `second` the next singular value, and `chain` the
    name of a chain that it is a part of.
    """

    interval: Interval
    norm: float
    second: float
    reshaped_norm: float | None
    batch_norm: float | None
    linear: float | None
    chain: str = ""


def compensates(numbers: Numbers) -> bool:
    """Whether batch norm and the rest of the chain work against each other.

    Either what the rest amplifies most is what batch norm damps, so that the norms multiplied say
    more than twice too much; or the rest has been brought down to one and batch norm takes the
    chain up again, so that bounding the rest alone has not bounded the chain.
    """
    if numbers.batch_norm is None or numbers.linear is None:
        return False
    damped = numbers.interval.upper < numbers.linear * numbers.batch_norm / 2
    return damped or _undone(numbers)


def _undone(numbers: Numbers) -> bool:
    assert numbers.batch_norm is not None and numbers.linear is not None
    return numbers.linear <= 1 + NEARLY < numbers.batch_norm and numbers.interval.lower > 1 + NEARLY


def remark_on(numbers: Numbers) -> str:
    """The remark of a layer, the most telling things first, two sentences at most."""
    if numbers.interval.upper == 0:
        return "Maps every input to the same output: it passes nothing on, and may be dead."
    sentences = [_about_norm(numbers)]
    for about in (_about_batch_norm, _about_reshaped, _about_rank):
        sentences.append(about(numbers))
    return " ".join([sentence for sentence in sentences if sentence][:2])


def _about_norm(numbers: Numbers) -> str:
    interval, norm = numbers.interval, _short(numbers.norm)
    if interval.upper < _FADED:
        return (
            f"Shrinks every difference to {_short(interval.upper)} of its length at most: little "
            "of its input gets through."
        )
    if interval.upper <= 1:
        return "Lengthens no difference between two inputs."
    if interval.upper <= 1 + NEARLY:
        return f"Lengthens differences by {_percent(interval.upper - 1)} % at most: as good as one."
    if interval.lower <= 1:
        return "About one: the interval does not tell on which side; a smaller tol would."
    if numbers.chain:
        return f"Lengthens some differences {norm} times by itself; what counts is {numbers.chain}."
    if interval.lower > _SUSPICIOUS:
        return f"Lengthens some differences {norm} times: look at its weights before clipping it."
    return f"Lengthens some differences {norm} times; clip_ would bring that down to a bound."


def _about_batch_norm(numbers: Numbers) -> str:
    if not compensates(numbers):
        return ""
    assert numbers.batch_norm is not None and numbers.linear is not None
    apart = (
        f"{_short(numbers.linear)} without batch norm, and batch norm {_short(numbers.batch_norm)}"
    )
    if _undone(numbers):
        return f"The rest alone has norm {apart}: batch norm undoes the bound, so clip the chain."
    return (
        f"The rest alone has norm {apart}, yet together only {_short(numbers.norm)}: bound the "
        "chain as one, since bounds on its parts are far from what it does."
    )


def _about_reshaped(numbers: Numbers) -> str:
    seen = numbers.reshaped_norm
    if seen is None or numbers.batch_norm is not None or not seen:
        return ""
    ratio = numbers.norm / seen
    if 0.9 <= ratio <= 1.1:
        return ""
    wrong = (
        f"{_short(ratio)} times too large" if ratio > 1 else f"{_short(1 / ratio)} times too small"
    )
    return f"torch's spectral_norm would see {_short(seen)} and so leave it {wrong}."


def _about_rank(numbers: Numbers) -> str:
    if not numbers.second or numbers.norm < 3 * numbers.second:
        return ""
    less = _short(numbers.norm / numbers.second)
    return f"One direction stands out: the next is amplified {less} times less."


def _short(value: float) -> str:
    return f"{value:.3g}"


def _percent(share: float) -> str:
    """Rounded up, so that what is said holds."""
    return f"{math.ceil(1000 * share) / 10:g}"
