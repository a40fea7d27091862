"""The learning rate of each series, by one rule for all.

Each of four rates is tried in one run of one epoch at the middle bound, with the whole schedule,
without the last 5,000 training images. The rate with the highest accuracy on these is taken.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.session import Session
from benchmarks.common.training_runs import Found, run_all
from benchmarks.tradeoff.recipe import QUICK, Recipe
from benchmarks.tradeoff.series import SERIES
from benchmarks.tradeoff.training import Task, said, train

HELD_OUT, QUICK_HELD_OUT = 5000, 100
TRAIN_IMAGES = 50_000
QUICK_STEPS = 10
EPOCHS = 1.0
SEED = 100  # none of those that are trained with
ENDING = 120.0  # seconds that testing, clipping, certifying and attacking may take


def steps_of(epochs: float, batch: int, images: int = TRAIN_IMAGES) -> int:
    """How many batches are so many epochs."""
    return max(1, round(epochs * images / batch))


def tasks(quick: bool) -> list[Task]:
    """All short runs, the series in turns."""
    recipe, images, apart = (
        (QUICK, "synthetic", QUICK_HELD_OUT) if quick else (Recipe(), "cifar10", HELD_OUT)
    )
    steps = QUICK_STEPS if quick else steps_of(EPOCHS, recipe.batch, TRAIN_IMAGES - apart)
    return [
        Task(series.name, series.middle, SEED, steps, series.rates[index], recipe, images, apart)
        for index in ((1,) if quick else (1, 2, 0, 3))
        for series in SERIES.values()
    ]


def measure(
    session: Session,
    folder: Path,
    *,
    only: Collection[str],
    processes: int,
    seconds: float | None,
    finished: Path,
) -> dict[str, Any]:
    """The rates, and what they were chosen by."""
    wanted = tasks(session.quick)
    found = run_all(
        session,
        wanted,
        partial(train, folder=folder),
        only=only,
        finished=finished,
        processes=processes,
        said=said,
        seconds=seconds,
        nominal={name: wanted[0].steps * series.seconds for name, series in SERIES.items()},
        ending=ENDING,
    )
    return {
        "held_out": wanted[0].held_out,
        "steps": wanted[0].steps,
        "rows": found.rows,
        "chosen": chosen(found),
        "failed": found.failed,
        "left": found.left,
    }


def chosen(found: Found) -> dict[str, float]:
    """The best rate of each series all of whose runs are over, one way or another."""
    waiting = {label.split(",")[0] for label in found.left}
    best: dict[str, tuple[float, float]] = {}
    for row in found.rows:
        name = row["task"]["series"]
        score = row["accuracy"], row["task"]["rate"]
        best[name] = max(best.get(name, score), score)
    return {name: score[-1] for name, score in best.items() if name not in waiting}
