"""Training runs beside each other, each stored when it is finished, and begun only if it can end.

A run is known by all that it depends on, its steps and its rate included. So what is there already
is never run again, and what was found with other steps or rates is not mixed in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common.session import Session
from benchmarks.training.pool import outcomes

# A run beside others is slower than the undisturbed steps say. Certifying and attacking comes after
# it: a minute, and up to ten where kernels are as large as the image. Runs of the same group that
# are finished know better.
SLOWER, ENDING = 1.5, 600.0
CAUTION = 1.15  # times the longest of those


class Task(Protocol):
    """One training run, which can be sent to another process."""

    @property
    def group(self) -> str:
        """Runs of a group take about the same time, and are asked for together."""

    @property
    def label(self) -> str:
        """What it is called in messages; begins with the group and a comma."""

    def described(self) -> dict[str, Any]:
        """All that it depends on, as it is stored: what JSON can hold."""


Row = dict[str, Any]  # of a run; its "task" is the task as described
Train = Callable[[Any], Row]


@dataclass(frozen=True)
class Deadline:
    """When all has to be over, as `time.time()` says it; and how long runs will take."""

    at: float
    seconds: dict[str, float]  # by group

    def allows(self, task: Task) -> bool:
        return time.time() + self.seconds[task.group] <= self.at


@dataclass(frozen=True)
class Found:
    """What there is of the runs that were wanted."""

    rows: list[Row]
    failed: list[dict[str, str]]
    left: list[str]  # for which there was no time, or which were not to be begun


def run_all(
    session: Session,
    tasks: Sequence[Task],
    train: Train,
    *,
    only: Collection[str],
    finished: Path,
    processes: int,
    said: Callable[[Row], str],
    seconds: float | None = None,
    nominal: Mapping[str, float] | None = None,
    ending: float = ENDING,
) -> Found:
    """All runs that are not in the file yet, in several processes of one thread each.

    Args:
        session: Where to say how far it is.
        tasks: What is wanted, in the order in which it is to be run.
        train: Makes of a task its row; to be sent to another process.
        only: The groups whose runs may be begun now.
        finished: A file of runs that are done, which is added to.
        processes: How many.
        said: What to say of a finished run.
        seconds: For all of it; None for as long as it takes.
        nominal: The seconds that the steps of each group should take.
        ending: The seconds that may come after the steps.
    """
    finished.parent.mkdir(parents=True, exist_ok=True)
    known = {_key(row["task"]): row for row in _rows(finished)}
    missing = [task for task in tasks if _key(task.described()) not in known]
    deadline = None
    if seconds is not None and nominal is not None:
        deadline = Deadline(time.time() + seconds, _expected(nominal, known, tasks, ending))
    failed = []
    left = [task.label for task in missing if task.group not in only]
    missing = [task for task in missing if task.group in only]
    attempt = partial(_attempt, train=train, deadline=deadline)
    for task, row, error in outcomes(attempt, missing, processes) if missing else ():
        if row is not None:
            known[_key(row["task"])] = row
            with finished.open("a") as file:
                file.write(json.dumps(row) + "\n")
            words = said(row)
        elif error:
            failed.append({"run": task.label, "error": error})
            words = error
        else:
            left.append(task.label)
            words = "no time left"
        session.say(f"{task.label}: {words}")
    wanted = (_key(task.described()) for task in tasks)
    return Found([known[key] for key in wanted if key in known], failed, left)


def _attempt(task: Task, train: Train, deadline: Deadline | None) -> tuple[Task, Row | None, str]:
    """A run that fails is noted, and the others go on; one that could not end is not begun."""
    if deadline is not None and not deadline.allows(task):
        return task, None, ""
    try:
        return task, train(task), ""
    except (ArithmeticError, RuntimeError, ValueError, ImportError) as error:
        return task, None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _expected(
    nominal: Mapping[str, float], known: Mapping[str, Row], tasks: Sequence[Task], ending: float
) -> dict[str, float]:
    """Seconds of a run of each group, from first to last."""
    found = {group: SLOWER * seconds + ending for group, seconds in nominal.items()}
    taken: dict[str, list[float]] = {}
    for task in tasks:
        row = known.get(_key(task.described()))
        if row is not None:
            taken.setdefault(task.group, []).append(row["total_seconds"])
    return found | {group: CAUTION * max(same) for group, same in taken.items()}


def _rows(finished: Path) -> list[Row]:
    lines = finished.read_text().splitlines() if finished.exists() else []
    return [json.loads(line) for line in lines]


def _key(task: Mapping[str, Any]) -> str:
    return json.dumps(task, sort_keys=True)
