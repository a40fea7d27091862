"""One training, the same for all competitors, and what is measured of the network it leaves."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.certified.competitors import COMPETITORS, finish
from benchmarks.certified.recipe import Labelled, Recipe, batches, held_out, loss_of, schedule
from experiments.attacks import pgd_linf, robust_accuracy
from experiments.data import Dataset, load, subset
from spectralclip import certified_accuracy, lipschitz_bounds

RADII = (36, 72, 108)  # in 255ths, in the l2 norm
PGD_EPS, PGD_STEPS, PGD_STRIDE = 2 / 255, 20, 0.25 * 2 / 255
PGD_IMAGES = 1000  # the first ones of the test
LOCAL_IMAGES = 8  # where the Jacobian is looked at
QUICK_IMAGES = (1000, 200)  # to train and to test with
CHUNK = 250  # images that go through a network together


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

    def described(self) -> dict[str, Any]:
        """As it is stored: lists in place of tuples."""
        recipe = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.recipe).items()}
        return {**asdict(self), "recipe": recipe}


class Training:
    """A network on its way, one step at a time."""

    def __init__(self, task: Task, dataset: Dataset, part: Labelled) -> None:
        competitor, recipe = COMPETITORS[task.competitor], task.recipe
        self._recipe = recipe
        self.model = competitor.model(recipe, dataset, task.seed).train()
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=task.rate)
        example = torch.zeros(1, *dataset.in_shape)
        self.attachment = competitor.attach(self.model, self._optimizer, example, task.seed)
        self._rates = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, schedule(recipe, task.steps)
        )
        generator = torch.Generator().manual_seed(1000 + task.seed)
        self._batches = batches(part, recipe.batch, generator)

    def step(self) -> float:
        """One batch, and its loss."""
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        loss = loss_of(self._recipe, self.model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._rates.step()
        value = loss.item()
        if not math.isfinite(value):
            raise ArithmeticError(f"the loss is {value} after {self._rates.last_epoch} steps")
        return value


@lru_cache
def data(name: str, folder: Path) -> Dataset:
    """The images, read once in each process."""
    found = load(name, folder)
    return subset(found, *QUICK_IMAGES) if name == "synthetic" else found


def train(task: Task, folder: Path) -> dict[str, Any]:
    """A whole run, as it is stored."""
    dataset = data(task.images, folder)
    part: Labelled = dataset.train_images, dataset.train_labels
    tests: Labelled = dataset.test_images, dataset.test_labels
    if task.held_out:
        part, tests = held_out(dataset, task.held_out)
    began = time.perf_counter()
    training = Training(task, dataset, part)
    losses = [training.step() for _ in range(task.steps)]
    seconds = time.perf_counter() - began
    last = losses[-max(1, task.steps // 20) :]
    row = {
        "task": task.described(),
        "seconds": seconds,
        "loss": sum(last) / len(last),
        "accuracy_before": _accuracy(training.model, tests),
    }
    finish(training.model, training.attachment)
    measured = _measured(training.model, tests, attacked=not task.held_out)
    return {**row, **measured, "total_seconds": time.perf_counter() - began}


def _measured(model: nn.Module, tests: Labelled, attacked: bool) -> dict[str, Any]:
    """What the network does on images, and what is proved of it."""
    images, labels = tests
    some = images[:LOCAL_IMAGES].float() / 255
    bound = lipschitz_bounds(model, some)
    scores = _scores(model, images)
    certified = {
        str(radius): float(
            certified_accuracy(scores.double(), labels, lipschitz=bound, radius=radius / 255)
        )
        for radius in RADII
    }
    return {
        "accuracy": float((scores.argmax(1) == labels).double().mean()),
        "certified": certified,
        "pgd": _attacked(model, images[:PGD_IMAGES], labels[:PGD_IMAGES]) if attacked else None,
        "bound": _finite(bound.upper),
        "lower": bound.lower,
        "product": _finite(bound.product),
        "failure": bound.failure,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()
def _scores(model: nn.Module, images: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(chunk.float() / 255) for chunk in images.split(CHUNK)])


def _accuracy(model: nn.Module, tests: Labelled) -> float:
    images, labels = tests
    return float((_scores(model, images).argmax(1) == labels).double().mean())


def _attacked(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Accuracy under projected gradient descent in the l-infinity norm."""
    pixels = images.float() / 255
    moved = pgd_linf(
        model,
        pixels,
        labels,
        eps=PGD_EPS,
        steps=PGD_STEPS,
        step_size=PGD_STRIDE,
        generator=torch.Generator().manual_seed(0),
        batch=CHUNK,
    )
    return robust_accuracy(model, pixels, moved, labels, batch=CHUNK)
