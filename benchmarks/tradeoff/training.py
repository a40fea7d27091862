"""One training, the same for all series, and what is measured of the network it leaves."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.common.images import Labelled, accuracy, attacked, data, held_out
from benchmarks.common.learner import Learner, at_the_end
from benchmarks.tradeoff.recipe import (
    Recipe,
    attached,
    example,
    finish,
    network,
    optimizer_of,
)
from benchmarks.tradeoff.series import SERIES
from experiments.data import Dataset
from experiments.engine.surroundings import commit
from experiments.measuring.norms import true_norms
from spectralclip import find_layers, lipschitz_bounds

PGD_IMAGES = 500  # the first ones of the test
LOCAL_IMAGES = 8  # where the Jacobian is looked at
SHIFT = 4  # pixels by which images are moved at most, besides being mirrored


@dataclass(frozen=True)
class Task:
    """One training run."""

    series: str
    bound: float | None
    seed: int
    steps: int
    rate: float
    recipe: Recipe
    images: str = "cifar10"  # as `experiments.data` knows it
    held_out: int = 0  # training images that are tested with in place of the test images

    @property
    def group(self) -> str:
        return self.series

    @property
    def label(self) -> str:
        at = "" if self.bound is None else f", bound {self.bound:g}"
        return f"{self.series}{at}, rate {self.rate:g}, seed {self.seed}"

    def described(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)


class Training(Learner):
    """A network of a series on its way."""

    def __init__(self, task: Task, dataset: Dataset, part: Labelled) -> None:
        series, recipe = SERIES[task.series], task.recipe
        model = network(series, task.bound, recipe, dataset, task.seed).train()
        # A norm after a layer counts with it: what it multiplies by is part of that layer's norm.
        self.layers = find_layers(model, example(dataset), compose="conv_bn")
        optimizer = optimizer_of(series, model, recipe, task.rate)
        self.attachment = attached(series, task.bound, model, optimizer, dataset, task.seed)
        rates = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, task.rate, total_steps=task.steps, pct_start=recipe.warm_up
        )
        super().__init__(
            model,
            optimizer,
            rates,
            F.cross_entropy,
            part=part,
            batch=recipe.batch,
            seed=task.seed,
            shift=SHIFT,
        )


def train(task: Task, folder: Path) -> dict[str, Any]:
    """A whole run, as it is stored."""
    dataset = data(task.images, folder)
    part, tests = held_out(dataset, task.held_out)
    began, processor = time.perf_counter(), time.process_time()
    training = Training(task, dataset, part)
    losses = [training.step() for _ in range(task.steps)]
    seconds, used = time.perf_counter() - began, time.process_time() - processor
    row = {
        "task": task.described(),
        "seconds": seconds,
        "cpu_seconds": used,
        "loss": at_the_end(losses),
        "accuracy_before": accuracy(training.model, tests),
    }
    finish(SERIES[task.series], training.attachment)
    row["accuracy"] = accuracy(training.model, tests)
    if not task.held_out:
        row |= _measured(training, tests)
    total = time.perf_counter() - began
    return {
        **row,
        "commit": commit(),
        "total_seconds": total,
        "total_cpu_seconds": time.process_time() - processor,
    }


def _measured(training: Training, tests: Labelled) -> dict[str, Any]:
    """What is left of the accuracy under attack, and what is known of the constant."""
    images, labels = tests
    model: nn.Module = training.model
    bound = lipschitz_bounds(model, images[:LOCAL_IMAGES].float() / 255)
    return {
        "pgd": attacked(model, images[:PGD_IMAGES], labels[:PGD_IMAGES]),
        "bound": bound.upper if math.isfinite(bound.upper) else None,
        "lower": bound.lower,
        "failure": bound.failure,
        "largest_norm": max(true_norms(model, training.layers).values()),
    }


def said(row: dict[str, Any]) -> str:
    """A finished run in a few words."""
    words = f"accuracy {row['accuracy']:.3f}"
    if "pgd" not in row:
        return words
    bound = "none" if row["bound"] is None else f"{row['bound']:.4g}"
    return f"{words}, PGD {row['pgd']:.3f}, bound {bound}"
