"""Accuracy against accuracy under attack, over bounds: `python -m benchmarks.tradeoff`.

Two parts, in this order: `rates` chooses learning rates in short runs; `train` trains each series
at each of its bounds, with three seeds where a figure rests on them. Runs are stored one by one,
and what is there is not run again: a part that was stopped goes on where it was, and `--for 150m`
stops it in time. `--epochs 1` is a pilot, with a page of its own in `runs/`.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from benchmarks.common.command import (
    add_run_options,
    finished_runs,
    needed,
    only,
    stored,
    write_page,
)
from benchmarks.common.runs import limit_threads, measured, results_file, save, trial_file

NAME = "tradeoff"
RESULTS = results_file(NAME)
PARTS = ("rates", "train")


def main() -> None:
    arguments = _arguments()
    limit_threads()
    results = stored(arguments)
    ends = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    parts = () if arguments.render else PARTS if arguments.part is None else (arguments.part,)
    for part in parts:
        measure = partial(_measure, part, arguments, results["parts"], ends)
        results["parts"][part] = measured(measure, one_process=False)
        save(results, arguments.out)
    from benchmarks.tradeoff.picture import draw
    from benchmarks.tradeoff.render import render

    write_page(NAME, results, arguments.out, render, draw)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tradeoff", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten steps of all, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--epochs", type=float, help="of each training; 8 if not given")
    add_run_options(parser, "series")
    arguments = parser.parse_args()
    if (arguments.epochs is not None and arguments.epochs <= 0) or arguments.processes < 1:
        parser.error("--epochs must be above 0, and --processes at least 1.")
    if arguments.out is None:
        if arguments.quick:
            arguments.out = trial_file(NAME)
        elif arguments.epochs is not None:
            arguments.out = trial_file(NAME, f"{arguments.epochs:g}-epochs")
        else:
            arguments.out = RESULTS
    return arguments


def _measure(
    part: str, arguments: argparse.Namespace, parts: dict[str, Any], ends: float | None
) -> dict[str, Any]:
    from benchmarks.common.session import Session
    from benchmarks.tradeoff import cells, rates
    from benchmarks.tradeoff.series import SERIES
    from benchmarks.training.data import default_folder

    session = Session(arguments.quick)
    folder = default_folder() if arguments.data is None else arguments.data
    # The choice of rates does not depend on the epochs: a pilot's serves the runs that count.
    kept_at = RESULTS if part == "rates" and not arguments.quick else arguments.out
    options = {
        "only": only(arguments.only, SERIES),
        "processes": arguments.processes,
        "seconds": None if ends is None else max(0.0, ends - time.monotonic()),
        "finished": finished_runs(kept_at, part, anew=arguments.anew),
    }
    if part == "rates":
        return rates.measure(session, folder, **options)
    found = needed(parts, "rates")
    if not found["chosen"]:
        raise SystemExit("No learning rate is chosen yet: run --part rates with more time.")
    epochs = cells.EPOCHS if arguments.epochs is None else arguments.epochs
    return cells.measure(session, folder, epochs, found, **options)


if __name__ == "__main__":
    main()
