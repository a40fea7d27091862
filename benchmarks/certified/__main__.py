"""Certified accuracy on CIFAR-10 at equal wall-clock time: `python -m benchmarks.certified`.

Three parts, in this order: `steps` times a step of each competitor, on an idle machine; `rates`
chooses learning rates in short runs; `train` trains each competitor with three seeds, as many steps
as fit into the time. Runs are stored one by one, and what is there is not run again: a part that
was stopped goes on where it was, and `--for 150m` stops it in time.
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

RESULTS = results_file("certified")
PARTS = ("steps", "rates", "train")
MINUTES, QUICK_MINUTES = 20.0, 0.02


def main() -> None:
    arguments = _arguments()
    limit_threads()
    results = stored(arguments)
    ends = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    parts = () if arguments.render else PARTS if arguments.part is None else (arguments.part,)
    for part in parts:
        measure = partial(_measure, part, arguments, results["parts"], ends)
        results["parts"][part] = measured(measure, one_process=part == "steps")
        save(results, arguments.out)
    from benchmarks.certified.picture import draw
    from benchmarks.certified.render import render

    write_page("certified", results, arguments.out, render, draw)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certified", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute of all, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--minutes", type=float, help=f"of each training; {MINUTES:g} if not given")
    add_run_options(parser, "competitors")
    arguments = parser.parse_args()
    if arguments.minutes is None:
        arguments.minutes = QUICK_MINUTES if arguments.quick else MINUTES
    if arguments.minutes <= 0 or arguments.processes < 1:
        parser.error("--minutes must be above 0, and --processes at least 1.")
    if arguments.out is None:
        arguments.out = trial_file("certified") if arguments.quick else RESULTS
    return arguments


def _measure(
    part: str, arguments: argparse.Namespace, parts: dict[str, Any], ends: float | None
) -> dict[str, Any]:
    from benchmarks.certified import cells, rates, steps
    from benchmarks.certified.competitors import COMPETITORS
    from benchmarks.common.session import Session
    from benchmarks.training.data import default_folder

    session = Session(arguments.quick)
    names = only(arguments.only, COMPETITORS)
    folder = default_folder() if arguments.data is None else arguments.data
    if part == "steps":
        return steps.measure(session, folder, names)
    number = steps.steps_within(needed(parts, "steps"), arguments.minutes)
    options = {
        "only": names,
        "minutes": arguments.minutes,
        "processes": arguments.processes,
        "seconds": None if ends is None else max(0.0, ends - time.monotonic()),
        "finished": finished_runs(arguments.out, part, anew=arguments.anew),
    }
    if part == "rates":
        return rates.measure(session, folder, number, **options)
    chosen = needed(parts, "rates")["chosen"]
    if not chosen:
        raise SystemExit("No learning rate is chosen yet: run --part rates with more time.")
    return cells.measure(session, folder, number, chosen, **options)


if __name__ == "__main__":
    main()
