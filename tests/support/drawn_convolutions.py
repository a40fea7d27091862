"""Convolutions of any geometry, for Hypothesis to draw."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from seeds import seeded
from torch import nn

# A layer that torch itself refuses is drawn again, and the largest take a moment.
EXAMPLES = settings(
    max_examples=60,
    suppress_health_check=[
        *(HealthCheck.filter_too_much, HealthCheck.too_slow),
        HealthCheck.function_scoped_fixture,
    ],
)
SAME_EVEN = "ignore:Using padding='same' with even kernel:UserWarning"

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d}
MODES = ["zeros", "reflect", "replicate", "circular"]


@st.composite
def geometries(draw: st.DrawFn, axes: int) -> tuple[dict[str, Any], list[int]]:
    """Kernel, stride, dilation and input size, for each axis on its own."""

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    size = each(1, 7 if axes == 2 else 14)
    options: dict[str, Any] = {
        "kernel_size": tuple(each(1, 5 if axes == 1 else 4)),
        "stride": tuple(each(1, 3)),
        "dilation": tuple(each(1, 3)),
        "groups": draw(st.integers(1, 2)),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
    }
    return options, size


@st.composite
def convolutions(draw: st.DrawFn, axes: int) -> tuple[nn.Module, tuple[int, ...]]:
    options, size = draw(geometries(axes))
    options["padding_mode"] = draw(st.sampled_from(MODES))
    if draw(st.integers(0, 3)) == 0:
        options["padding"] = draw(st.sampled_from(["same", "valid"]))
        if options["padding"] == "same":
            options["stride"] = (1,) * axes
    else:
        padding = draw(st.lists(st.integers(0, 3), min_size=axes, max_size=axes))
        options["padding"] = tuple(padding)
    return build(draw, CONVOLUTIONS[axes], options, size)


@st.composite
def transposed_convolutions(draw: st.DrawFn, axes: int) -> tuple[nn.Module, tuple[int, ...]]:
    options, size = draw(geometries(axes))
    padding = draw(st.lists(st.integers(0, 3), min_size=axes, max_size=axes))
    options["padding"] = tuple(padding)
    # torch allows up to the larger of stride and dilation, exclusive.
    options["output_padding"] = tuple(
        draw(st.integers(0, max(stride, dilation) - 1))
        for stride, dilation in zip(options["stride"], options["dilation"], strict=True)
    )
    return build(draw, TRANSPOSED[axes], options, size)


def build(
    draw: st.DrawFn, kind: type[nn.Module], options: dict[str, Any], size: list[int]
) -> tuple[nn.Module, tuple[int, ...]]:
    groups = options["groups"]
    inputs = groups * draw(st.integers(1, 2))
    outputs = groups * draw(st.integers(1, 3))
    with seeded(draw(st.integers(0, 1000))):
        layer = kind(inputs, outputs, **options)
    in_shape = (inputs, *size)
    try:
        with torch.no_grad():
            output = layer(torch.zeros(1, *in_shape, dtype=options["dtype"]))
    except (RuntimeError, ValueError):
        assume(False)
    assume(output.numel() > 0)
    return layer, in_shape
