"""What runs would take on another machine, from counted operations: an estimate, and no more.

The floating-point operations of a forward pass are counted on the meta device. Training takes
three times as many for each image, an attack twice as many for each of its iterations. Methods add
to each step of training; how much, the benchmarks count for some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments import models
from experiments.experiment import Cell, Config
from experiments.training import TrainConfig

IMAGES = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
TRAINING, ATTACKING = 3, 2  # passes in place of one
# Seconds that methods add to a step on a GPU, as docs/hardware.md estimates it.
ADDED = 5e-3


@dataclass(frozen=True)
class Work:
    """What some runs are made of.

    Attributes:
        flops: Floating-point operations of networks.
        steps: Of training with a method.
    """

    flops: float
    steps: float

    def hours(self, speed: float) -> float:
        """On a device that sustains so many operations a second."""
        return (self.flops / speed + ADDED * self.steps) / 3600


def work_of(cells: list[Cell]) -> Work | None:
    """That of trainings; None where there are others among the runs."""
    if not all({"dataset", "model", "epochs"} <= cell.config.keys() for cell in cells):
        return None
    found = [_of_training(cell.config) for cell in cells]
    return Work(sum(one.flops for one in found), sum(one.steps for one in found))


def _of_training(config: Config) -> Work:
    settings = TrainConfig.of(config)
    if settings.dataset not in IMAGES:
        return Work(0.0, 0.0)
    train, test = IMAGES[settings.dataset]
    images = settings.train_images or train
    tests = settings.test_images or test
    seen = settings.epochs * (TRAINING * images + tests)
    protocols = 2 if settings.protocol == "both" else 1
    attacked = sum(
        ATTACKING * one.get("steps", one.get("iterations", 0)) * min(one["images"] or test, tests)
        for one in (settings.attacks or {}).values()
    )
    forward = _forward(settings.model, settings.width, settings.batch_norm, settings.dataset)
    steps = settings.epochs * images / settings.batch if settings.method != "none" else 0.0
    return Work(forward * (seen + protocols * attacked), steps)


@cache
def _forward(model: str, width: int, batch_norm: bool, dataset: str) -> float:
    """Operations of one image, a multiplication and an addition counting as two."""
    shape = SHAPES[dataset]
    like = models.Inputs(shape, (0.0,) * shape[0], (1.0,) * shape[0])
    network = models.build(model, width=width, batch_norm=batch_norm, dataset=like, seed=0)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network.to("meta").eval()(torch.zeros(1, *like.in_shape, device="meta"))
    return float(counter.get_total_flops())
