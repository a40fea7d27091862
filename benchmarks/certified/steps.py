"""What a step takes, of all competitors in turns in one process, and how many fit into the time.

Some methods do more at some steps than at others: FastClip and Parametrize every 100, SpectralClip
now and then. So many rounds are counted as one period has, after a few to begin with; what takes
seconds, and as long at each step, takes part in every fifth. The time of a step is what
`seconds_of` makes of them.
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
from experiments.measuring.stopwatch import Times, seconds_of

WARM_UP, ROUNDS = 20, 100
QUICK_WARM_UP, QUICK_ROUNDS = 1, 3
SLOW, SKIPPED = 1.5, 5  # seconds of a step, and in which of the rounds it is taken then
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
    times = {name: Times() for name in trainings}
    taken: dict[str, float] = {}  # by the last step of each
    for round_ in range(warm_up + rounds):
        shift = round_ % len(trainings)
        order = list(trainings)
        for name in order[shift:] + order[:shift]:
            if taken.get(name, 0.0) > SLOW and round_ % SKIPPED:
                continue
            wall, processor = time.perf_counter(), time.process_time()
            trainings[name].step()
            now = time.perf_counter(), time.process_time()
            taken[name] = now[0] - wall
            if round_ >= warm_up:
                times[name].append((taken[name], now[1] - processor))
        if (round_ + 1) % 10 == 0:
            session.say(f"steps: {round_ + 1}/{warm_up + rounds} rounds")
    rows = [_row(name, found) for name, found in times.items()]
    for row in rows:
        session.say(f"steps: {row['competitor']} {1e3 * row['step_seconds']:.1f} ms")
    return {"recipe": tasks[0].described()["recipe"], "rounds": rounds, "rows": rows}


def _row(name: str, times: Times) -> dict[str, Any]:
    walls, processors = zip(*times, strict=True)
    return {
        "competitor": name,
        "step_seconds": seconds_of(times),
        "median_seconds": statistics.median(walls),
        "mean_seconds": statistics.fmean(walls),
        "median_cpu_seconds": statistics.median(processors),
        "mean_cpu_seconds": statistics.fmean(processors),
    }


def steps_within(part: dict[str, Any], minutes: float) -> dict[str, int]:
    """How many steps of each competitor fit."""
    rows = part["rows"]
    return {r["competitor"]: max(1, int(60 * minutes / r["step_seconds"])) for r in rows}
