"""Figure: how far the norms of circulant matrices are from those of convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from experiments.experiment import Config, Context, Experiment, Result, Scale
from experiments.figure_circulant_error.claims import CLAIMS
from experiments.figure_circulant_error.errors import (
    CHANNELS,
    KERNELS,
    MORE_CHANNELS,
    PADDINGS,
    Padding,
)
from experiments.figure_circulant_error.section import section
from experiments.measuring.true_norm import TrueNorm, true_norm
from spectralclip.methods.baselines.delattre import Delattre
from spectralclip.methods.baselines.sedghi import Sedghi
from spectralclip.methods.baselines.senderovich import Senderovich

STRIDES = (1, 2)
FILTERS = 100
SIDE = 32
# By the square of the channels: what the estimates and the truth of a filter cost, and how much of
# it goes into a cell of a minute or two.
BASE_WORK, CELL_WORK = 20, 3e6


def grid(scale: Scale) -> list[Config]:
    """Cells of as many filters as go into a minute or two; the figure is the same at full size."""
    if scale == "smoke":
        return list(_cells((3, 5), (1, 2, 4), filters=4, side=8))
    channels = CHANNELS if scale == "laptop" else (*CHANNELS, *MORE_CHANNELS)
    return list(_cells(KERNELS, channels, filters=FILTERS, side=SIDE))


def _cells(
    kernels: Sequence[int], channels: Sequence[int], filters: int, side: int
) -> Iterator[Config]:
    for kernel in kernels:
        for width in channels:
            size = min(filters, max(1, round(CELL_WORK / (width**2 * (kernel**2 + BASE_WORK)))))
            for first in range(0, filters, size):
                last = min(first + size, filters)
                yield {
                    "label": f"{kernel}x{kernel} {width} channels filters {first} to {last - 1}",
                    "kernel": kernel,
                    "channels": width,
                    "side": side,
                    "filters": [first, last],
                    "seed": 0,
                }


def run(config: Config, context: Context) -> Result:
    """Norms and estimates of some filters, for each padding and stride."""
    torch.set_num_threads(context.threads)
    first, last = config["filters"]
    found: Result = {
        "true": {f"{padding} {stride}": [] for padding in PADDINGS for stride in STRIDES},
        "circulant": {str(stride): [] for stride in STRIDES},
        "gram": [],
        "largest_residual": 0.0,
    }
    for index in range(first, last):
        context.say((index - first) / (last - first), f"filter {index}")
        _measure(config, index, found)
    return found


def _measure(config: Config, index: int, found: Result) -> None:
    shape = (config["channels"], config["side"], config["side"])
    weight = _filter(config, index)
    # The estimates take every padding for circular, so that one of each will do.
    plain, strided = (_layer(weight, "circular", stride) for stride in STRIDES)
    found["circulant"]["1"].append(Sedghi.estimate(plain, shape))
    found["circulant"]["2"].append(Senderovich.estimate(strided, shape))
    # Strides are none of its business: the bound is the same for all.
    found["gram"].append(Delattre.estimate(plain, shape))
    for padding in PADDINGS:
        for stride in STRIDES:
            norm: TrueNorm = true_norm(_layer(weight, padding, stride), shape, seed=index)
            found["true"][f"{padding} {stride}"].append(norm.value)
            found["largest_residual"] = max(found["largest_residual"], norm.residual)
    if not math.isfinite(found["largest_residual"]):
        raise RuntimeError(f"Filter {index} has no finite norm: weights {tuple(weight.shape)}.")


def _filter(config: Config, index: int) -> torch.Tensor:
    """Taps from a normal distribution, which depend on nothing but sizes, seed and index."""
    kernel, width = config["kernel"], config["channels"]
    seed = ((config["seed"] * 1000 + index) * 100 + kernel) * 1000 + width
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(width, width, kernel, kernel, generator=generator)


def _layer(weight: torch.Tensor, padding: Padding, stride: int) -> nn.Conv2d:
    width, _, kernel, _ = weight.shape
    with torch.device("meta"):  # initial weights would come from the global generator
        layer = nn.Conv2d(
            width,
            width,
            kernel,
            stride=stride,
            padding=kernel // 2,
            padding_mode=padding,
            bias=False,
        )
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


EXPERIMENT = Experiment(
    name="figure_circulant_error",
    title="The error of taking a convolution for circulant",
    where="Appendix C.1, Figure (a): error of the circulant approximation",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    cpu_only=True,
)
