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

from experiments import registry
from experiments.engine.work import Failed, Task, now_and_then, perform
from experiments.experiment import SCALES, Cell
from experiments.store import Store, default_folder


def main(args: Sequence[str] | None = None) -> int:
    """Do one run, and tell the exit code: 0 fine, 1 failed, 2 bad input."""
    given = _parser().parse_args(args)
    try:
        cell = _only(registry.cells([given.experiment], given.scale), given.run)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    store = Store(given.results or default_folder(given.scale))
    first = int(os.environ.get("RANK", "0")) == 0
    if store.finished(cell):
        return _tell(first, f"{store.path(cell)} is there.")
    task = Task(
        registry.PACKAGE,
        cell,
        given.data,
        store.scratch(cell),
        store.log(cell),
        given.threads,
        given.device,
    )
    event = perform(task, now_and_then(lambda share, words: _say(first, share, words), 10.0))
    if isinstance(event, Failed):
        print(event.details, file=sys.stderr)
        return 1
    if first:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        store.save(cell, event.result, {**event.run, "processes": processes})
        store.clear(cell)
    return _tell(first, f"wrote {store.path(cell)}")


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


def _say(first: bool, share: float, words: str) -> None:
    if first:
        print(f"{share:4.0%} {words}", flush=True)


def _tell(first: bool, line: str) -> int:
    if first:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
