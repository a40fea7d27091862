"""One training, the same for all competitors, and what is measured of the network it leaves."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.certified.competitors import COMPETITORS, finish
from benchmarks.certified.recipe import Recipe, loss_of, schedule
from benchmarks.common.images import (
    Labelled,
    accuracy,
    attacked,
    data,
    held_out,
    scores_of,
)
from benchmarks.common.learner import Learner, at_the_end
from experiments.data import Dataset
from spectralclip import certified_accuracy, lipschitz_bounds

RADII = (36, 72, 108)  # in 255ths, in the l2 norm
PGD_IMAGES = 1000  # the first ones of the test
LOCAL_IMAGES = 8  # where the Jacobian is looked at


@dataclass(frozen=True)
class Task:
    """One training run."""

    competitor: str
    seed: int
    steps: int
    rate: float
    recipe: Recipe
    images: str = "cifar10"  # as `experiments.data` knows it
    held_out: int = 0  # training images that are tested with in place of the test images

    @property
    def group(self) -> str:
        return self.competitor

    @property
    def label(self) -> str:
        return f"{self.competitor}, rate {self.rate:g}, seed {self.seed}"

    def described(self) -> dict[str, Any]:
        """As it is stored: lists in place of tuples."""
        recipe = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.recipe).items()}
        return {**asdict(self), "recipe": recipe}


class Training(Learner):
    """A competitor's network on its way."""

    def __init__(self, task: Task, dataset: Dataset, part: Labelled) -> None:
        competitor, recipe = COMPETITORS[task.competitor], task.recipe
        model = competitor.model(recipe, dataset, task.seed).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=task.rate)
        example = torch.zeros(1, *dataset.in_shape)
        self.attachment = competitor.attach(model, optimizer, example, task.seed)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(recipe, task.steps))
        loss = partial(loss_of, recipe)
        super().__init__(
            model,
            optimizer,
            rates,
            loss,
            part=part,
            batch=recipe.batch,
            seed=task.seed,
            shift=recipe.shift,
        )


def train(task: Task, folder: Path) -> dict[str, Any]:
    """A whole run, as it is stored."""
    dataset = data(task.images, folder)
    part, tests = held_out(dataset, task.held_out)
    began = time.perf_counter()
    training = Training(task, dataset, part)
    losses = [training.step() for _ in range(task.steps)]
    seconds = time.perf_counter() - began
    row = {
        "task": task.described(),
        "seconds": seconds,
        "loss": at_the_end(losses),
        "accuracy_before": accuracy(training.model, tests),
    }
    finish(training.model, training.attachment)
    measured = _measured(training.model, tests, under_attack=not task.held_out)
    return {**row, **measured, "total_seconds": time.perf_counter() - began}


def _measured(model: nn.Module, tests: Labelled, under_attack: bool) -> dict[str, Any]:
    """What the network does on images, and what is proved of it."""
    images, labels = tests
    some = images[:LOCAL_IMAGES].float() / 255
    bound = lipschitz_bounds(model, some)
    scores = scores_of(model, images)
    certified = {
        str(radius): float(
            certified_accuracy(scores.double(), labels, lipschitz=bound, radius=radius / 255)
        )
        for radius in RADII
    }
    pgd = attacked(model, images[:PGD_IMAGES], labels[:PGD_IMAGES]) if under_attack else None
    return {
        "accuracy": float((scores.argmax(1) == labels).double().mean()),
        "certified": certified,
        "pgd": pgd,
        "bound": _finite(bound.upper),
        "lower": bound.lower,
        "product": _finite(bound.product),
        "failure": bound.failure,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def said(row: dict[str, Any]) -> str:
    """A finished run in a few words."""
    return f"accuracy {row['accuracy']:.3f}, certified {row['certified']}"
