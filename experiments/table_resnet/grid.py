"""The runs: ResNet-18 with every method, with and without batch norm."""

from __future__ import annotations

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import METHODS, configs
from experiments.experiment import Config, Scale

MODEL = "resnet18"
WITH_BN = (Column(MODEL, "mnist"), Column(MODEL, "cifar10"))
NO_BN = tuple(column.without for column in WITH_BN)
COLUMNS = (WITH_BN[0], NO_BN[0], WITH_BN[1], NO_BN[1])


def grid(scale: Scale) -> list[Config]:
    """Every method on both data sets, with and without batch norm; a smoke run takes a few."""
    if scale == "smoke":
        few = ("none", "fast_clip")
        return [
            *configs(scale, model=MODEL, datasets=("mnist",), batch_norm=True, methods=METHODS),
            *configs(scale, model=MODEL, datasets=("cifar10",), batch_norm=False, methods=few),
        ]
    return [
        config
        for batch_norm in (True, False)
        for config in configs(
            scale,
            model=MODEL,
            datasets=("mnist", "cifar10"),
            batch_norm=batch_norm,
            methods=METHODS,
        )
    ]
