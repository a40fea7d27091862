"""The runs: some steps of every network with every method, in turns, alone on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import METHODS, configs
from experiments.experiment import Config, Scale

RESNET_CIFAR, RESNET_MNIST = Column("resnet18", "cifar10"), Column("resnet18", "mnist")
DLA_CIFAR = Column("dla", "cifar10")
COLUMNS = (RESNET_CIFAR, RESNET_MNIST, DLA_CIFAR)


@dataclass(frozen=True)
class Size:
    """How many steps are timed, after how many that do not count, and how often."""

    warm_up: int
    steps: int
    batch: int
    seeds: int


# In a hundred steps a method that acts every hundred acts once, wherever they begin.
TIMINGS: dict[Scale, Size] = {
    "smoke": Size(1, 2, 8, 1),
    "laptop": Size(3, 100, 32, 3),
    "desk": Size(10, 100, 32, 12),
    "paper": Size(10, 100, 128, 3),
}


def grid(scale: Scale) -> list[Config]:
    """The networks of the tables with batch norm, with every method; a smoke run takes a few."""
    size = TIMINGS[scale]
    methods = ("none", "fast_clip") if scale == "smoke" else METHODS
    trainings = [
        _timed(config, size)
        for column in COLUMNS
        for config in configs(
            scale,
            model=column.model,
            datasets=[column.dataset],
            batch_norm=True,
            methods=methods,
            measure="none",
            attacked=False,
            seeds=1,
        )
    ]
    shared = {"alone": True, "warm_up": size.warm_up, "steps": size.steps, "trainings": trainings}
    seeds = range(size.seeds) if trainings else ()
    return [{"label": f"steps seed {seed}", "seed": seed, **shared} for seed in seeds]


def _timed(config: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """A training, with as many images as are needed; the seed is that of the run."""
    return {
        **{key: value for key, value in config.items() if key not in ("label", "seed")},
        "epochs": 1,
        "batch": size.batch,
        "train_images": size.batch * (size.warm_up + size.steps),
    }
