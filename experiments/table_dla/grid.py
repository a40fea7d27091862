"""The runs: DLA with every method, with and without batch norm; ours with one seed at `desk`."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import METHODS, PAPERS, configs
from experiments.experiment import Config, Scale

COLUMNS = (Column("dla", "cifar10"), Column("dla", "mnist"))


def grid(scale: Scale) -> list[Config]:
    """Every method on both data sets; without batch norm only trained, not attacked."""
    datasets = ("mnist",) if scale == "smoke" else ("mnist", "cifar10")
    if scale == "smoke":
        return [
            *_configs(scale, datasets, ("none", "fast_clip")),
            *_bare(scale, datasets, ["none"]),
        ]
    if scale != "desk":
        return [*_configs(scale, datasets, METHODS), *_bare(scale, datasets, METHODS)]
    ours = METHODS[len(PAPERS) :]
    return [
        *_configs(scale, datasets, PAPERS),
        *_bare(scale, datasets, PAPERS),
        *_configs(scale, datasets, ours, seeds=1),
        *_bare(scale, datasets, ours, seeds=1),
    ]


def _configs(
    scale: Scale, datasets: Sequence[str], methods: Sequence[str], seeds: int | None = None
) -> list[Config]:
    found = configs(
        scale, model="dla", datasets=datasets, batch_norm=True, methods=methods, seeds=seeds
    )
    return [*found]


def _bare(
    scale: Scale, datasets: Sequence[str], methods: Sequence[str], seeds: int | None = None
) -> list[Config]:
    """Without batch norm it is only trained, not attacked."""
    found = configs(
        scale,
        model="dla",
        datasets=datasets,
        batch_norm=False,
        methods=methods,
        attacked=False,
        seeds=seeds,
    )
    return [*found]
