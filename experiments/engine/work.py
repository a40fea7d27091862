"""One run: what an engine is given, what it does, and what it tells.

This is imported by every process that works, so it leaves large packages to the experiments.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from experiments import registry
from experiments.engine.surroundings import surroundings
from experiments.experiment import Cell, Context, Experiment, Result
from experiments.store.plain import plain
from spectralclip._common import one_line

Say = Callable[[float, str], None]


@dataclass(frozen=True)
class Task:
    """A run to be done.

    Attributes:
        package: In which the experiment is.
        cell: The run.
        data: The folder with data sets, if one was given.
        scratch: For its checkpoints.
        log: The file for what it prints.
        threads: That it may use.
        device: To run on.
    """

    package: str
    cell: Cell
    data: Path | None
    scratch: Path
    log: Path
    threads: int = 1
    device: str = "cpu"

    @property
    def key(self) -> str:
        """Its name among all tasks."""
        return key_of(self.cell)


@dataclass(frozen=True)
class Said:
    """A task has come so far."""

    key: str
    share: float
    words: str


@dataclass(frozen=True)
class Done:
    """A task has finished; `result` and `run` are as in a record."""

    key: str
    result: Result
    run: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """A task has not.

    Attributes:
        key: Of the task.
        line: Why, in one line.
        details: Why, at length.
        is_final: Whether it would fail again, however often it is tried.
    """

    key: str
    line: str
    details: str
    is_final: bool = False


Event = Said | Done | Failed


class Engine(Protocol):
    """Does tasks, at most `slots` at a time."""

    name: str
    slots: int

    def start(self, task: Task) -> None:
        """Begin a task; there is a free slot."""

    def events(self, seconds: float) -> list[Event]:
        """What has happened; waits for so long if nothing has."""

    def close(self) -> None:
        """Stop all that runs."""


def key_of(cell: Cell) -> str:
    """The name of a run among those of all experiments."""
    return f"{cell.experiment}/{cell.id}"


def perform(task: Task, say: Say) -> Done | Failed:
    """Do a task in this process."""
    try:
        experiment = registry.load(task.cell.experiment, task.package)  # not a part of its time
        device = "cpu" if experiment.cpu_only else task.device
        # Before the run: sources that change meanwhile are not those that it uses.
        where = surroundings(device, task.threads)
        started, clock = datetime.now(timezone.utc), time.perf_counter()
        resumed = task.scratch.is_dir() and any(task.scratch.iterdir())
        task.scratch.mkdir(parents=True, exist_ok=True)
        result, timing = _answer(experiment, replace(task, device=device), say)
        run = {
            **where,
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - clock, 3),
            "resumed": resumed,
            "timing": timing,
        }
        return Done(task.key, result, run)
    except (Exception, SystemExit) as error:
        # What is wrong with a configuration, a checkpoint or a number stays wrong.
        is_final = isinstance(error, ValueError)
        return Failed(task.key, error_line(error), traceback.format_exc(), is_final)


def error_line(error: BaseException) -> str:
    """An error on one line: its type and what it says."""
    kind, text = type(error).__name__, one_line(error)
    return kind if text == kind else f"{kind}: {text}"


def now_and_then(say: Say, seconds: float = 0.25) -> Say:
    """The same, but what comes too soon after what was said last is left out."""
    last = float("-inf")

    def sometimes(share: float, words: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            say(float(share), str(words))

    return sometimes


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _answer(experiment: Experiment, task: Task, say: Say) -> tuple[Result, Any]:
    """The result, and the times that were kept apart from it."""
    context = Context(task.data, task.scratch, task.threads, task.device, say)
    with _torch_as_new(task.threads):
        answer: Any = experiment.run(task.cell.config, context)
    has_timing = isinstance(answer, dict) and answer.keys() == {"result", "timing"}
    result, timing = (answer["result"], answer["timing"]) if has_timing else (answer, None)
    if not isinstance(result, dict) or not result:
        got = "an empty one" if result == {} else type(result).__name__
        raise TypeError(f"result: expected a dict with what came out, got {got}.")
    return plain(result), plain(timing, "timing")


@contextlib.contextmanager
def _torch_as_new(threads: int) -> Iterator[None]:
    """What ran before in this process makes no difference to a run that draws random numbers."""
    if "torch" not in sys.modules:  # the experiment does without
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)
