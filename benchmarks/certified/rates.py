"""The learning rate of each competitor, by one rule for all.

Each of four rates is tried in one short run, of a twentieth of the steps that the competitor has
and with the whole schedule, without the last 5,000 training images. The rate with the highest
certified accuracy at 36/255 on these is taken; between equals, the one with the highest accuracy.
A network that has not learned is taken only where none has: one that always says the same is
certified wherever that is right.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.certified.recipe import QUICK, Recipe
from benchmarks.certified.training import RADII, Task, said, train
from benchmarks.common.session import Session
from benchmarks.common.training_runs import Found, run_all
from experiments.accuracy.grid import UNTRAINED

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SHARE = 0.05  # of the steps
HELD_OUT, QUICK_HELD_OUT = 5000, 100
SEED = 100  # none of those that are trained with


def tasks(quick: bool, steps: dict[str, int]) -> list[Task]:
    """All short runs, the competitors in turns."""
    recipe, images, apart = (
        (QUICK, "synthetic", QUICK_HELD_OUT) if quick else (Recipe(), "cifar10", HELD_OUT)
    )
    rates = RATES[1:3] if quick else RATES
    return [
        Task(name, SEED, max(1, round(SHARE * steps[name])), rate, recipe, images, apart)
        for rate in rates
        for name in steps
    ]


def measure(
    session: Session,
    folder: Path,
    steps: dict[str, int],
    *,
    only: Collection[str],
    minutes: float,
    processes: int,
    seconds: float | None,
    finished: Path,
) -> dict[str, Any]:
    """The rates, and what they were chosen by."""
    found = run_all(
        session,
        tasks(session.quick, steps),
        partial(train, folder=folder),
        only=only,
        finished=finished,
        processes=processes,
        said=said,
        seconds=seconds,
        nominal={name: 60 * minutes * SHARE for name in steps},
    )
    return {
        "minutes": minutes,
        "share": SHARE,
        "held_out": QUICK_HELD_OUT if session.quick else HELD_OUT,
        "tried": list(RATES[1:3] if session.quick else RATES),
        "rows": [_row(row) for row in found.rows],
        "chosen": chosen(found),
        "failed": found.failed,
        "left": found.left,
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    kept = ("loss", "accuracy", "certified", "bound", "seconds")
    task = row["task"]
    described = {key: task[key] for key in ("competitor", "rate", "steps")}
    return {**described, **{key: row[key] for key in kept}}


def chosen(found: Found) -> dict[str, float]:
    """The best rate of each competitor all of whose runs are over, one way or another."""
    waiting = {name.split(",")[0] for name in found.left}
    best: dict[str, tuple[bool, float, float, float]] = {}
    for row in found.rows:
        name = row["task"]["competitor"]
        certified, accuracy = row["certified"][str(RADII[0])], row["accuracy"]
        score = accuracy > UNTRAINED, certified, accuracy, row["task"]["rate"]
        best[name] = max(best.get(name, score), score)
    return {name: score[-1] for name, score in best.items() if name not in waiting}
