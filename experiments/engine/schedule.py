"""Which runs are done when, and what becomes of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from experiments.engine.work import Done, Engine, Event, Failed, Said, Task, key_of
from experiments.experiment import Cell
from experiments.store.lock import Lock

if TYPE_CHECKING:
    from experiments.display import Display
    from experiments.store import Store

_TICK = 0.5  # seconds after which we look whether another process has finished


@dataclass(frozen=True)
class Failure:
    """A run that was given up: why, after how many attempts, and where more is told."""

    line: str
    attempts: int
    log: Path


@dataclass
class Summary:
    """What became of the runs, by their names; those left had no time."""

    stored: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    failed: dict[str, Failure] = field(default_factory=dict)


def run(
    cells: Sequence[Cell],
    store: Store,
    engine: Engine,
    display: Display,
    make_task: Callable[[Cell], Task],
    *,
    retries: int = 2,
    seconds: float = math.inf,
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Do those runs that are not stored yet, and store them.

    Runs that another process is doing are waited for, and so is one that measures times, which
    goes alone. A run that fails is begun again from its scratch folder, after the others, unless
    it would fail again. Whatever ends this function, the engine is closed.

    Args:
        cells: The runs.
        store: Where they go.
        engine: Does them.
        display: Is told what happens.
        make_task: What the engine is given for a run.
        retries: How often one that has failed is begun again.
        seconds: After which all is stopped; what ran then can be taken up from its checkpoints.
        note: Is told for whom all runs wait.

    Returns:
        What became of them.
    """
    schedule = _Schedule(cells, store, engine, display, make_task, retries, note)
    end = time.monotonic() + seconds
    try:
        while (schedule.waiting or schedule.running) and time.monotonic() < end:
            schedule.fill()
            if schedule.running or schedule.waiting:
                for event in engine.events(_TICK):
                    schedule.settle(event)
    finally:
        engine.close()
        schedule.release()
    return schedule.summary


@final
class _Schedule:
    def __init__(
        self,
        cells: Sequence[Cell],
        store: Store,
        engine: Engine,
        display: Display,
        make_task: Callable[[Cell], Task],
        retries: int,
        note: Callable[[str], None],
    ) -> None:
        ordered = sorted(cells, key=lambda cell: cell.alone)
        self.waiting = {key_of(cell): cell for cell in ordered}
        self.running: dict[str, tuple[Cell, Lock]] = {}
        self.summary = Summary()
        self._store, self._engine, self._display = store, engine, display
        self._make_task, self._retries, self._note = make_task, retries, note
        self._attempts: dict[str, int] = {}
        self._elsewhere: set[str] = set()
        self._room: Lock | None = None
        self._has_noted = False

    def fill(self) -> None:
        """Begin what there are free slots for; what measures times goes alone, after the others."""
        for key, cell in list(self.waiting.items()):
            alone = any(running.alone for running, _ in self.running.values())
            if alone or len(self.running) >= self._engine.slots:
                return
            if cell.alone and self.running:
                continue
            if self._store.finished(cell):
                self._found(key)
            elif not self._has_room(cell):
                self._note_wait(key)
            elif lock := self._store.lock(cell):
                self._begin(key, cell, lock)
            elif key not in self._elsewhere:
                self._elsewhere.add(key)
                self._display.elsewhere(key, self._store.owner(cell))
        self._leave_room()

    def settle(self, event: Event) -> None:
        """Deal with what an engine has told."""
        if isinstance(event, Said):
            self._display.said(event.key, event.share, event.words)
            return
        cell, lock = self.running[event.key]
        if isinstance(event, Done):
            self._store_run(event, cell)
        else:
            self._repeat_or_give_up(event, cell)
        del self.running[event.key]
        lock.release()
        self._leave_room()

    def release(self) -> None:
        """Give up all locks, and take note of what is not done."""
        self.summary.left = [*self.running, *self.waiting]
        for _, lock in self.running.values():
            lock.release()
        self.running.clear()
        self._leave_room()

    def _has_room(self, cell: Cell) -> bool:
        """Whether no other process measures times, or is there while this run would."""
        if not self.running:
            self._leave_room()  # it may be of the other kind
            self._room = self._store.room(cell)
        return self._room is not None

    def _leave_room(self) -> None:
        """Let other processes have it, if nothing runs."""
        if self._room is not None and not self.running:
            self._room.release()
            self._room = None

    def _note_wait(self, key: str) -> None:
        if not self._has_noted:
            self._has_noted = True
            owner = self._store.room_owner()
            self._note(f"{key} waits for {owner}: runs that measure times go alone.")

    def _begin(self, key: str, cell: Cell, lock: Lock) -> None:
        # It may have been stored by another process since we looked.
        if self._store.finished(cell) or self._store.adopt(cell):
            lock.release()
            self._found(key)
            return
        self.running[key] = (cell, lock)
        del self.waiting[key]
        self._attempts[key] = self._attempts.get(key, 0) + 1
        self._display.began(key, self._attempts[key])
        self._engine.start(self._make_task(cell))

    def _found(self, key: str) -> None:
        del self.waiting[key]
        self.summary.found.append(key)
        self._display.found(key)

    def _store_run(self, event: Done, cell: Cell) -> None:
        notes = {"engine": self._engine.name, "attempts": self._attempts[event.key]}
        self._store.save(cell, event.result, {**event.run, **notes})
        self._store.clear(cell)
        self.summary.stored.append(event.key)
        self._display.stored(event.key, event.run["seconds"])

    def _repeat_or_give_up(self, event: Failed, cell: Cell) -> None:
        log, attempts = self._store.log(cell), self._attempts[event.key]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"attempt {attempts} failed: {event.details.rstrip()}\n")
        again = attempts <= self._retries and not event.is_final
        if again:
            self.waiting[event.key] = cell  # behind all others
        else:
            self.summary.failed[event.key] = Failure(event.line, attempts, log)
        self._display.failed(event.key, event.line, again=again)
