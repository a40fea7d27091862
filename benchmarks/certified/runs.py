"""Training runs beside each other, each stored when it is finished, and begun only if it can end.

A run is known by all that it depends on, its steps and its rate included. So what is there already
is never run again, and what was found with other steps or rates is not mixed in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.certified.training import Task, train
from benchmarks.common.session import Session
from benchmarks.training.pool import outcomes

# A run beside others is slower than the undisturbed steps say. Certifying and attacking comes after
# it: a minute, and up to ten where kernels are as large as the image. Runs of the same competitor
# that are finished know better.
SLOWER, ENDING = 1.5, 600.0
CAUTION = 1.15  # times the longest of those


@dataclass(frozen=True)
class Deadline:
    """When all has to be over, as `time.time()` says it; and how long runs will take."""

    at: float
    seconds: dict[str, float]  # by competitor

    def allows(self, task: Task) -> bool:
        return time.time() + self.seconds[task.competitor] <= self.at


@dataclass(frozen=True)
class Found:
    """What there is of the runs that were wanted."""

    rows: list[dict[str, Any]]
    failed: list[dict[str, str]]
    left: list[str]  # for which there was no time, or which were not to be begun


def run_all(
    session: Session,
    tasks: Sequence[Task],
    folder: Path,
    *,
    only: Collection[str],
    finished: Path,
    processes: int,
    seconds: float | None = None,
    nominal: dict[str, float] | None = None,
) -> Found:
    """All runs that are not in the file yet, in several processes of one thread each.

    Args:
        session: Where to say how far it is.
        tasks: What is wanted, in the order in which it is to be run.
        folder: With the images.
        only: The competitors whose runs may be begun now.
        finished: A file of runs that are done, which is added to.
        processes: How many.
        seconds: For all of it; None for as long as it takes.
        nominal: The seconds that the steps of each competitor should take.
    """
    finished.parent.mkdir(parents=True, exist_ok=True)
    stored = _rows(finished)
    known = {_key(row["task"]): row for row in stored}
    missing = [task for task in tasks if _key(task.described()) not in known]
    deadline = None
    if seconds is not None and nominal is not None:
        deadline = Deadline(time.time() + seconds, _expected(nominal, known, tasks))
    failed = []
    left = [_name(task) for task in missing if task.competitor not in only]
    missing = [task for task in missing if task.competitor in only]
    attempt = partial(_attempt, folder=folder, deadline=deadline)
    for task, row, error in outcomes(attempt, missing, processes) if missing else ():
        name = _name(task)
        if row is not None:
            known[_key(row["task"])] = row
            with finished.open("a") as file:
                file.write(json.dumps(row) + "\n")
            said = f"accuracy {row['accuracy']:.3f}, certified {row['certified']}"
        elif error:
            failed.append({"run": name, "error": error})
            said = error
        else:
            left.append(name)
            said = "no time left"
        session.say(f"{name}: {said}")
    wanted = (_key(task.described()) for task in tasks)
    return Found([known[key] for key in wanted if key in known], failed, left)


def _attempt(
    task: Task, folder: Path, deadline: Deadline | None
) -> tuple[Task, dict[str, Any] | None, str]:
    """A run that fails is noted, and the others go on; one that could not end is not begun."""
    if deadline is not None and not deadline.allows(task):
        return task, None, ""
    try:
        return task, train(task, folder), ""
    except (ArithmeticError, RuntimeError, ValueError, ImportError) as error:
        return task, None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _expected(
    nominal: dict[str, float], known: dict[str, dict[str, Any]], tasks: Sequence[Task]
) -> dict[str, float]:
    """Seconds of a run of each competitor, from first to last."""
    wanted = {_key(task.described()) for task in tasks}
    found = {name: SLOWER * seconds + ENDING for name, seconds in nominal.items()}
    for name in nominal:
        same = [
            row["total_seconds"]
            for key, row in known.items()
            if key in wanted and row["task"]["competitor"] == name
        ]
        found[name] = CAUTION * max(same) if same else found[name]
    return found


def _rows(finished: Path) -> list[dict[str, Any]]:
    lines = finished.read_text().splitlines() if finished.exists() else []
    return [json.loads(line) for line in lines]


def _name(task: Task) -> str:
    return f"{task.competitor}, rate {task.rate:g}, seed {task.seed}"


def _key(task: dict[str, Any]) -> str:
    return json.dumps(task, sort_keys=True)
