"""The runs: DLA with every method, with and without batch norm."""

from __future__ import annotations

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import METHODS, configs
from experiments.experiment import Config, Scale

COLUMNS = (Column("dla", "cifar10"), Column("dla", "mnist"))


def grid(scale: Scale) -> list[Config]:
    """Every method on both data sets; without batch norm only trained, not attacked."""
    datasets = ("mnist",) if scale == "smoke" else ("mnist", "cifar10")
    methods = ("none", "fast_clip") if scale == "smoke" else METHODS
    return [
        *configs(scale, model="dla", datasets=datasets, batch_norm=True, methods=methods),
        *configs(
            scale,
            model="dla",
            datasets=datasets,
            batch_norm=False,
            methods=methods[:1] if scale == "smoke" else methods,
            attacked=False,
        ),
    ]
