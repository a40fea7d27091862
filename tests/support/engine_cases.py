"""A small study, and what an engine tells of its runs."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from fake_study.adding import numbers

from experiments import registry
from experiments.engine import schedule
from experiments.engine.local import LocalEngine
from experiments.engine.work import Engine, Task
from experiments.experiment import Cell, Scale
from experiments.store import Store

PATIENCE = 60  # seconds; what takes longer hangs


class Notes:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.waits = threading.Event()
        self.interrupt_at = ""

    def __enter__(self) -> Notes:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def began(self, key: str, attempt: int) -> None:
        self.lines.append(("began", label(key), attempt))

    def said(self, key: str, share: float, words: str) -> None:
        self.lines.append(("said", label(key), share, words))
        # What comes soon after what was said is left out, so it may be a later one.
        if self.interrupt_at and words >= self.interrupt_at:
            raise KeyboardInterrupt

    def found(self, key: str) -> None:
        self.lines.append(("found", label(key)))

    def elsewhere(self, key: str, owner: str) -> None:
        self.lines.append(("elsewhere", label(key), owner))
        self.waits.set()

    def stored(self, key: str, seconds: float) -> None:
        self.lines.append(("stored", label(key)))

    def failed(self, key: str, line: str, *, again: bool) -> None:
        self.lines.append(("failed", label(key), line, again))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [rest for first, *rest in self.lines if first == kind]  # type: ignore[misc]


def label(key: str) -> str:
    """ "figure_fine/fine-1-0123456789" as "fine-1"."""
    return key.rpartition("/")[2].rpartition("-")[0]


class Study:
    """The fake study, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "results")
        self.trace = folder / "trace"
        self.notes = Notes()

    def run(
        self,
        cells: Sequence[Cell],
        engine: Engine | None = None,
        retries: int = 2,
        note: Callable[[str], None] = lambda text: None,
        seconds: float = math.inf,
    ) -> schedule.Summary:
        engine = engine or LocalEngine(workers=2)
        return schedule.run(
            cells,
            self.store,
            engine,
            self.notes,
            self.task,
            retries=retries,
            seconds=seconds,
            note=note,
        )

    def task(self, cell: Cell) -> Task:
        return Task("fake_study", cell, None, self.store.scratch(cell), self.store.log(cell))

    def totals(self, experiment: str, scale: Scale = "smoke") -> dict[str, int]:
        records = self.store.records(experiment, scale)
        return {label(record.id): record.result["total"] for record in records}

    def steps(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def leftovers(self) -> list[str]:
        work = self.store.folder / ".work"
        return sorted(str(path.relative_to(work)) for path in work.glob("*/*"))


def cells_of(name: str, scale: Scale = "smoke") -> list[Cell]:
    return registry.cells([name], scale, "fake_study")


def expected(cells: Sequence[Cell]) -> dict[str, int]:
    return {label(f"/{cell.id}"): sum(numbers(cell.config)) for cell in cells}


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "spawn_main" in " ".join(process.cmdline())
    return False
