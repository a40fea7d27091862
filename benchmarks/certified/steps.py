"""What a step takes, of all competitors in turns in one process, and how many fit into the time.

Some methods do more at some steps than at others: FastClip and Parametrize every 100, SpectralClip
now and then. So many rounds are counted as one period has, after a few to begin with. The time of a
step is the median of its wall times, multiplied by what the mean of its processor times is above
their median: this counts what comes now and then, and not what other programs did meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.certified.competitors import COMPETITORS
from benchmarks.certified.recipe import QUICK, Recipe
from benchmarks.certified.training import Task, Training
from benchmarks.common.images import data
from benchmarks.common.session import Session

WARM_UP, ROUNDS = 20, 100
QUICK_WARM_UP, QUICK_ROUNDS = 1, 3
RATE = 1e-3  # of the steps that are timed: what they cost does not depend on it


def measure(session: Session, folder: Path, only: Collection[str]) -> dict[str, Any]:
    """Times of these competitors."""
    recipe, images = (QUICK, "synthetic") if session.quick else (Recipe(), "cifar10")
    warm_up, rounds = (QUICK_WARM_UP, QUICK_ROUNDS) if session.quick else (WARM_UP, ROUNDS)
    dataset = data(images, folder)
    part = dataset.train_images, dataset.train_labels
    tasks = [
        Task(name, 0, warm_up + rounds, RATE, recipe, images)
        for name in COMPETITORS
        if name in only
    ]
    trainings = {task.competitor: Training(task, dataset, part) for task in tasks}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in trainings}
    for round_ in range(warm_up + rounds):
        shift = round_ % len(trainings)
        order = list(trainings)
        for name in order[shift:] + order[:shift]:
            wall, processor = time.perf_counter(), time.process_time()
            trainings[name].step()
            if round_ >= warm_up:
                now = time.perf_counter(), time.process_time()
                times[name].append((now[0] - wall, now[1] - processor))
        if (round_ + 1) % 10 == 0:
            session.say(f"steps: {round_ + 1}/{warm_up + rounds} rounds")
    rows = [_row(name, found) for name, found in times.items()]
    for row in rows:
        session.say(f"steps: {row['competitor']} {1e3 * row['step_seconds']:.1f} ms")
    return {"recipe": tasks[0].described()["recipe"], "rounds": rounds, "rows": rows}


def _row(name: str, times: list[tuple[float, float]]) -> dict[str, Any]:
    walls, processors = zip(*times, strict=True)
    return {
        "competitor": name,
        "step_seconds": seconds_of(walls, processors),
        "median_seconds": statistics.median(walls),
        "mean_seconds": statistics.fmean(walls),
        "median_cpu_seconds": statistics.median(processors),
        "mean_cpu_seconds": statistics.fmean(processors),
    }


def seconds_of(walls: tuple[float, ...], processors: tuple[float, ...]) -> float:
    """What a step takes on average where nothing else runs."""
    spread = statistics.fmean(processors) / statistics.median(processors)
    return statistics.median(walls) * max(1.0, spread)


def steps_within(part: dict[str, Any], minutes: float) -> dict[str, int]:
    """How many steps of each competitor fit."""
    rows = part["rows"]
    return {r["competitor"]: max(1, int(60 * minutes / r["step_seconds"])) for r in rows}
