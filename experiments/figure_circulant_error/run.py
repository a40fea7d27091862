"""One run: norms and estimates of some filters."""

from __future__ import annotations

import math

import torch
from torch import nn

from experiments.experiment import Config, Context, Result
from experiments.figure_circulant_error.errors import PADDINGS, Padding
from oracle import true_norm
from spectralclip.methods.baselines.delattre import Delattre
from spectralclip.methods.baselines.sedghi import Sedghi
from spectralclip.methods.baselines.senderovich import Senderovich

STRIDES = (1, 2)
TOLERANCE = 1e-5  # of the residual: the error of the norm is of the order of its square


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
    weight = make_filter(config, index)
    # The estimates take every padding for circular, so that one of each will do.
    plain, strided = (make_layer(weight, "circular", stride) for stride in STRIDES)
    found["circulant"]["1"].append(Sedghi.estimate(plain, shape))
    found["circulant"]["2"].append(Senderovich.estimate(strided, shape))
    # Strides are none of its business: the bound is the same for all.
    found["gram"].append(Delattre.estimate(plain, shape))
    for padding in PADDINGS:
        for stride in STRIDES:
            layer = make_layer(weight, padding, stride)
            norm = true_norm(layer, shape, tol=TOLERANCE, search=torch.float32, seed=index)
            found["true"][f"{padding} {stride}"].append(norm.value)
            found["largest_residual"] = max(found["largest_residual"], norm.residual)
    if not math.isfinite(found["largest_residual"]):
        raise RuntimeError(f"Filter {index} has no finite norm: weights {tuple(weight.shape)}.")


def make_filter(config: Config, index: int) -> torch.Tensor:
    """Taps from a normal distribution, which depend on nothing but sizes, seed and index."""
    kernel, width = config["kernel"], config["channels"]
    seed = ((config["seed"] * 1000 + index) * 100 + kernel) * 1000 + width
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(width, width, kernel, kernel, generator=generator)


def make_layer(weight: torch.Tensor, padding: Padding, stride: int) -> nn.Conv2d:
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
