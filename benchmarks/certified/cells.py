"""The runs that count: each competitor and seed, for the same time."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.certified.recipe import QUICK, Recipe
from benchmarks.certified.training import PGD_IMAGES, Task, said, train
from benchmarks.common.session import Session
from benchmarks.common.training_runs import run_all

SEEDS = (0, 1, 2)


def tasks(quick: bool, steps: dict[str, int], rates: dict[str, float]) -> list[Task]:
    """All runs, one seed after another, so that all competitors have equally many at any time."""
    recipe, images = (QUICK, "synthetic") if quick else (Recipe(), "cifar10")
    seeds = SEEDS[:2] if quick else SEEDS
    return [
        Task(name, seed, steps[name], rates[name], recipe, images)
        for seed in seeds
        for name in steps
        if name in rates
    ]


def measure(
    session: Session,
    folder: Path,
    steps: dict[str, int],
    rates: dict[str, float],
    *,
    only: Collection[str],
    minutes: float,
    processes: int,
    seconds: float | None,
    finished: Path,
) -> dict[str, Any]:
    """All runs for which there is time."""
    wanted = tasks(session.quick, steps, rates)
    found = run_all(
        session,
        wanted,
        partial(train, folder=folder),
        only=only,
        finished=finished,
        processes=processes,
        said=said,
        seconds=seconds,
        nominal={name: 60 * minutes for name in steps},
    )
    return {
        "minutes": minutes,
        "seeds": sorted({task.seed for task in wanted}),
        "images": wanted[0].images,
        "pgd_images": PGD_IMAGES,
        "processes": processes,
        "rows": found.rows,
        "failed": found.failed,
        "left": found.left,
    }
