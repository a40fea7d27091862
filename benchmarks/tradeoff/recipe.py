"""What is the same for all: the network and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.tradeoff.series import Series
from experiments.data import Dataset
from experiments.models import build
from experiments.models.scaled import Scaled
from spectralclip import Attachment, attach, init_at_bound_
from spectralclip.nn import CenterNorm, ScalarBatchNorm, replace_batch_norms_


@dataclass(frozen=True)
class Recipe:
    """Network and training; the number of steps and the learning rate are not part of it."""

    width: int = 8
    # With 64, 2 epochs under a bound of 300 end at 44.6 %; with 128 at 42.1, with 32 at 45.8.
    batch: int = 64
    momentum: float = 0.9  # of SGD
    warm_up: float = 0.2  # share of the steps in which the rate rises; then it falls to zero


QUICK = Recipe(width=2, batch=32)


def network(
    series: Series, bound: float | None, recipe: Recipe, dataset: Dataset, seed: int
) -> nn.Module:
    """From pixels in [0, 1] to scores, at its start."""
    has_norm = series.norm is not None
    model = build("resnet18", width=recipe.width, batch_norm=has_norm, dataset=dataset, seed=seed)
    if series.norm is ScalarBatchNorm or series.norm is CenterNorm:
        replace_batch_norms_(model, series.norm)
    scaled: Any = Scaled(model, series.scale)  # torch does not type `memory_format`
    scaled.to(memory_format=torch.channels_last)
    if series.at_bound:
        generator = torch.Generator().manual_seed(seed)
        bounds = bounds_of(series, bound)
        compose = None if series.method is None else series.method().compose
        init_at_bound_(scaled, example(dataset), compose=compose, generator=generator, **bounds)
    found: nn.Module = scaled
    return found


def bounds_of(series: Series, bound: float | None) -> dict[str, Any]:
    """The bound by the name of its argument; that is empty where nothing is held."""
    return {} if series.sweep is None else {series.sweep: bound}


def example(dataset: Dataset) -> Tensor:
    """One input of the network."""
    return torch.zeros(1, *dataset.in_shape)


def optimizer_of(series: Series, model: nn.Module, recipe: Recipe, rate: float) -> Optimizer:
    """Without weight decay."""
    if series.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=recipe.momentum, nesterov=True)


def attached(
    series: Series,
    bound: float | None,
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Dataset,
    seed: int,
) -> Attachment | None:
    """The method at work, if there is one."""
    if series.method is None:
        return None
    bounds = bounds_of(series, bound)
    method = series.method()
    return attach(model, optimizer, example(dataset), method=method, seed=seed, **bounds)


def finish(series: Series, attachment: Attachment | None) -> None:
    """End a training: ours clips and proves the bound; what others have left stays as it is."""
    if attachment is None:
        return
    if series.is_ours:
        attachment.finalize(certify=True)
    else:
        attachment.remove()
