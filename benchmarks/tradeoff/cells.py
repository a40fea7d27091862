"""The runs that count: each series, bound and seed; and what they will take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.session import Session
from benchmarks.common.training_runs import run_all
from benchmarks.tradeoff.rates import ENDING, QUICK_STEPS, steps_of
from benchmarks.tradeoff.recipe import QUICK, Recipe
from benchmarks.tradeoff.series import SEEDS, SERIES
from benchmarks.tradeoff.training import PGD_IMAGES, Task, said, train

EPOCHS = 8.0
CPU_ENDING = 45.0  # seconds of one core after the steps, roughly


def order() -> list[tuple[str, float | None, int]]:
    """Series, bound and seed of all cells: the first seed of all, then the others.

    With the other seeds, the lowest and the highest bounds of each series come last.
    """
    every = [(name, *cell) for name, series in SERIES.items() for cell in series.cells]

    def place(cell: tuple[str, float | None, int]) -> tuple[bool, bool, int]:
        name, bound, seed = cell
        is_first = seed == SEEDS[0]
        return not is_first, not is_first and bound not in SERIES[name].inner, seed

    return sorted(every, key=place)


def tasks(quick: bool, epochs: float, rates: Mapping[str, float]) -> list[Task]:
    """All runs whose rate is known."""
    recipe, images = (QUICK, "synthetic") if quick else (Recipe(), "cifar10")
    steps = QUICK_STEPS if quick else steps_of(epochs, recipe.batch)
    return [
        Task(name, bound, seed, steps, rates[name], recipe, images)
        for name, bound, seed in order()
        if name in rates and not (quick and seed)
    ]


def measure(
    session: Session,
    folder: Path,
    epochs: float,
    rates: Mapping[str, Any],
    *,
    only: Collection[str],
    processes: int,
    seconds: float | None,
    finished: Path,
) -> dict[str, Any]:
    """All runs for which there is time, given what the choice of rates has found."""
    wanted = tasks(session.quick, epochs, rates["chosen"])
    steps = step_seconds(rates, "seconds")
    found = run_all(
        session,
        wanted,
        partial(train, folder=folder),
        only=only,
        finished=finished,
        processes=processes,
        said=said,
        seconds=seconds,
        nominal={name: wanted[0].steps * taken for name, taken in steps.items()},
        ending=ENDING,
    )
    return {
        "epochs": epochs,
        "steps": wanted[0].steps,
        "images": wanted[0].images,
        "pgd_images": PGD_IMAGES,
        "processes": processes,
        "rows": found.rows,
        "failed": found.failed,
        "left": found.left,
    }


def step_seconds(rates: Mapping[str, Any] | None, key: str) -> dict[str, float]:
    """What a step of each series takes: from its short runs, or roughly."""
    found = {name: series.seconds for name, series in SERIES.items()}
    taken: dict[str, list[float]] = {}
    for row in () if rates is None else rates["rows"]:
        taken.setdefault(row["task"]["series"], []).append(row[key] / row["task"]["steps"])
    return found | {name: sum(own) / len(own) for name, own in taken.items()}


def core_hours(epochs: float, rates: Mapping[str, Any] | None = None) -> dict[str, float]:
    """What all cells of each series take, in hours of one core."""
    steps = steps_of(epochs, Recipe().batch)
    return {
        name: len(SERIES[name].cells) * (steps * taken + CPU_ENDING) / 3600
        for name, taken in step_seconds(rates, "cpu_seconds").items()
    }
