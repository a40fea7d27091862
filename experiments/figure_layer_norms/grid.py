"""The runs: some steps of training with every method, each alone on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import METHODS, SIZES, configs
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
    "laptop": Size(3, 100, 32, 2),
    "desk": Size(10, 100, 32, 6),
    "paper": Size(10, 100, 128, 3),
}


def grid(scale: Scale) -> list[Config]:
    """The networks of the tables with batch norm, with every method; a smoke run takes a few."""
    methods = ("none", "fast_clip") if scale == "smoke" else METHODS
    found = [
        config
        for column in COLUMNS
        for config in configs(
            scale,
            model=column.model,
            datasets=[column.dataset],
            batch_norm=True,
            methods=methods,
            measure="none",
            attacked=False,
            seeds=TIMINGS[scale].seeds,
        )
    ]
    return [_timed(config, TIMINGS[scale], SIZES[scale].train_images) for config in found]


def _timed(config: Mapping[str, Any], size: Size, images: int | None) -> Config:
    """The training is a part of the configuration, since it is not done to its end."""
    wanted = size.batch * (size.warm_up + size.steps)
    return {
        "label": f"{config['label']} step",
        "alone": True,
        "seed": config["seed"],
        "warm_up": size.warm_up,
        "steps": size.steps,
        "training": {
            **{key: value for key, value in config.items() if key != "label"},
            "epochs": 1,
            "batch": size.batch,
            "train_images": None if images is None else wanted,
        },
    }
