"""The runs: ResNet-18 with every method, with and without batch norm.

At the scale `desk` networks without batch norm are trained by two recipes. By the paper's own,
short trainings stay at chance: one seed shows that. Claims rest on the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import BOUNDED, METHODS, PAPER, configs
from experiments.experiment import Config, Scale
from experiments.figure_concat.grid import SHARED

MODEL = "resnet18"
WITH_BN = (Column(MODEL, "mnist"), Column(MODEL, "cifar10"))
NO_BN = tuple(column.without for column in WITH_BN)
COLUMNS = (WITH_BN[0], NO_BN[0], WITH_BN[1], NO_BN[1])
BOUNDED_COLUMNS = tuple(column.bounded for column in NO_BN)
NETWORK = "spectral_clip_network"
DATASETS = ("mnist", "cifar10")


def grid(scale: Scale) -> list[Config]:
    """Every method on both data sets, with and without batch norm; a smoke run takes a few."""
    if scale == "smoke":
        few = ("none", "fast_clip")
        return [
            *configs(scale, model=MODEL, datasets=("mnist",), batch_norm=True, methods=METHODS),
            *configs(scale, model=MODEL, datasets=("cifar10",), batch_norm=False, methods=few),
        ]
    found = _with_batch_norm(scale)
    if scale != "desk":
        return found + _without(scale, METHODS, DATASETS)
    return [
        *found,
        *_without(scale, METHODS, DATASETS, BOUNDED),
        *_without(scale, METHODS, DATASETS, seeds=1),
        *_without(scale, [NETWORK], DATASETS[1:], BOUNDED),
    ]


def _with_batch_norm(scale: Scale) -> list[Config]:
    """Other figures read the paper's method on CIFAR-10, with its batch norms."""
    shared = [("cifar10", "fast_clip", "compositions")] if scale in SHARED else []
    others = [
        (dataset, method, "layers")
        for dataset in DATASETS
        for method in METHODS
        if (dataset, method) not in [one[:2] for one in shared]
    ]
    return sorted(
        (
            config
            for dataset, method, measure in (*others, *shared)
            for config in configs(
                scale,
                model=MODEL,
                datasets=[dataset],
                batch_norm=True,
                methods=[method],
                measure=measure,
            )
        ),
        key=lambda config: config["seed"],
    )


def _without(
    scale: Scale,
    methods: Sequence[str],
    datasets: Sequence[str],
    recipe: str = PAPER,
    seeds: int | None = None,
) -> list[Config]:
    return [
        *configs(
            scale,
            model=MODEL,
            datasets=datasets,
            batch_norm=False,
            methods=methods,
            recipe=recipe,
            seeds=seeds,
        )
    ]
