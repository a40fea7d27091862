"""One run of the study by several processes, as `torchrun` starts them:

    torchrun --nproc-per-node 8 -m experiments.together table_resnet "*cifar10-bn-gouk-seed-0*" \
        --scale paper --data data --device cuda

A pool does many small runs side by side; this is for one that is large. The processes share each
batch, and the first of them stores the result where `python -m experiments report` finds it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from experiments import data as datasets
from experiments import registry
from experiments.engine.device import require_device
from experiments.engine.work import Failed, Task, now_and_then, perform
from experiments.experiment import SCALES, Cell
from experiments.guard import FAILED, guarded
from experiments.store import Store, Unreadable, results_folder
from experiments.store.lock import Lock
from experiments.training.process_group import ProcessGroup
from spectralclip._common import FINE, Problem


def main(args: Sequence[str] | None = None) -> int:
    """Do one run, and tell the exit code: 0 fine, 1 failed, 2 bad input."""
    given = _parser().parse_args(args)
    return guarded(lambda: _run(given), debug=False)


def _run(given: argparse.Namespace) -> int:
    if given.threads < 1:
        raise Problem(f"--threads: expected at least 1, got {given.threads}.")
    require_device(given.device)
    cell = _only(registry.cells([given.experiment], given.scale), given.run)
    store = Store(results_folder(given.results, given.scale))
    group = ProcessGroup.joined(given.device)
    locks: list[Lock] = []
    trouble = None
    if group.rank == 0:
        try:
            locks = _begun(store, cell, given.data)
        except Exception as error:
            trouble = error
    # The others do as the first does, which they learn here: they would wait for it otherwise.
    goes_on = group.total([float(len(locks))])[0] > 0
    try:
        if trouble is not None:
            raise trouble
        return _done(store, cell, given, group) if goes_on else FINE
    finally:
        for lock in locks:
            lock.release()
        group.leave()


def _begun(store: Store, cell: Cell, data: Path | None) -> list[Lock]:
    """The rights to do the run and to use the machine; none if it is stored.

    Raises:
        DataMissing: Its data set is not there, and could not be had.
        Problem: Another process is doing it, or one of the two has to be alone.
        Unreadable: There is a file in its place that is no stored run.
    """
    store.require_writable()
    if not store.path(cell).exists():
        datasets.fetch([cell.config], data)
    lock = store.lock(cell)
    if lock is None:
        raise Problem(f"{cell.id} is being done by {store.owner(cell)}: wait for it, or end it.")
    try:
        if not (store.finished(cell) or store.adopt(cell)):
            return [lock, _room(store, cell)]
    except (Problem, Unreadable):
        lock.release()
        raise
    lock.release()
    print(f"{store.path(cell)} is there.")
    return []


def _room(store: Store, cell: Cell) -> Lock:
    room = store.room(cell)
    if room is None:
        raise Problem(
            f"{store.room_owner()} runs in {store.folder}, and runs that measure times go alone: "
            "wait for it, or end it."
        )
    return room


def _done(store: Store, cell: Cell, given: argparse.Namespace, group: ProcessGroup) -> int:
    scratch, log = store.scratch(cell), store.log(cell)
    task = Task(registry.PACKAGE, cell, given.data, scratch, log, given.threads, given.device)
    event = perform(task, now_and_then(lambda share, words: _say(group, share, words), 10.0))
    if isinstance(event, Failed):
        print(event.details, file=sys.stderr, flush=True)
        return FAILED
    if group.rank == 0:
        store.save(cell, event.result, {**event.run, "processes": group.size})
        store.clear(cell)
        print(f"wrote {store.path(cell)}")
    return FINE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.together", description="One run.")
    parser.add_argument("experiment", help="such as table_resnet")
    parser.add_argument("run", help="its id, or a pattern that only one run has")
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--data", type=Path, help="the folder with data sets")
    parser.add_argument("--results", type=Path, help="the folder of results")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda")
    return parser


def _only(cells: Sequence[Cell], pattern: str) -> Cell:
    """The one run that is meant."""
    found = [cell for cell in cells if fnmatchcase(cell.id, pattern)]
    if len(found) != 1:
        some = ", ".join(cell.id for cell in (found or cells)[:5])
        raise ValueError(
            f"run: expected a pattern that one of {len(cells)} runs has, got {pattern!r}, which "
            f"{len(found)} have. Runs are such as {some}."
        )
    return found[0]


def _say(group: ProcessGroup, share: float, words: str) -> None:
    if group.rank == 0:
        print(f"{share:4.0%} {words}", flush=True)


def _end(code: int) -> NoReturn:
    """End at once: torn down, one in twenty of the interpreters of a gloo group aborted."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
