"""Certified accuracy on CIFAR-10 at equal wall-clock time: `python -m benchmarks.certified`.

Three parts, in this order: `steps` times a step of each competitor, on an idle machine; `rates`
chooses learning rates in short runs; `train` trains each competitor with three seeds, as many steps
as fit into the time. Runs are stored one by one, and what is there is not run again: a part that
was stopped goes on where it was, and `--for 150m` stops it in time.
"""

from __future__ import annotations

import argparse
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.pages import page_file, picture_file, write
from benchmarks.common.runs import limit_threads, load, measured, results_file, save, trial_file

RESULTS = results_file("certified")
PARTS = ("steps", "rates", "train")
MINUTES, QUICK_MINUTES = 20.0, 0.02


def main() -> None:
    arguments = _arguments()
    limit_threads()
    results = _stored(arguments)
    ends = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    parts = () if arguments.render else PARTS if arguments.part is None else (arguments.part,)
    for part in parts:
        measure = partial(_measure, part, arguments, results["parts"], ends)
        results["parts"][part] = measured(measure, one_process=part == "steps")
        save(results, arguments.out)
    _write_page(results, arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certified", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute of all, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    parser.add_argument("--minutes", type=float, help=f"of each training; {MINUTES:g} if not given")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=seconds_of,
        metavar="TIME",
        help="begin no run that would not be over by then: 150m, 2h or 90s",
    )
    parser.add_argument("--only", metavar="NAMES", help="these competitors, with commas between")
    parser.add_argument("--processes", type=int, default=2, help="of rates and train")
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10")
    parser.add_argument("--anew", action="store_true", help="forget the runs that are stored")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    if arguments.minutes is None:
        arguments.minutes = QUICK_MINUTES if arguments.quick else MINUTES
    if arguments.minutes <= 0 or arguments.processes < 1:
        parser.error("--minutes must be above 0, and --processes at least 1.")
    if arguments.out is None:
        arguments.out = trial_file("certified") if arguments.quick else RESULTS
    return arguments


def seconds_of(text: str) -> float:
    """A time such as 150m, in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 150m, 2h or 90s, got {text!r}.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _stored(arguments: argparse.Namespace) -> dict[str, Any]:
    """What earlier runs have left, unless all parts are measured anew."""
    if (arguments.part is not None or arguments.render) and arguments.out.exists():
        stored = load(arguments.out)
        if stored["quick"] == arguments.quick:
            return stored
    return {"quick": arguments.quick, "parts": {}}


def _measure(
    part: str, arguments: argparse.Namespace, parts: dict[str, Any], ends: float | None
) -> dict[str, Any]:
    from benchmarks.certified import cells, rates, steps
    from benchmarks.common.session import Session
    from benchmarks.training.data import default_folder

    session = Session(arguments.quick)
    only = _only(arguments)
    folder = default_folder() if arguments.data is None else arguments.data
    if part == "steps":
        return steps.measure(session, folder, only)
    number = steps.steps_within(_needed(parts, "steps"), arguments.minutes)
    options = {
        "only": only,
        "minutes": arguments.minutes,
        "processes": arguments.processes,
        "seconds": None if ends is None else max(0.0, ends - time.monotonic()),
        "finished": _finished(arguments, part),
    }
    if part == "rates":
        return rates.measure(session, folder, number, **options)
    chosen = _needed(parts, "rates")["chosen"]
    if not chosen:
        raise SystemExit("No learning rate is chosen yet: run --part rates with more time.")
    return cells.measure(session, folder, number, chosen, **options)


def _only(arguments: argparse.Namespace) -> list[str]:
    from benchmarks.certified.competitors import COMPETITORS

    chosen = list(COMPETITORS) if arguments.only is None else arguments.only.split(",")
    unknown = [name for name in chosen if name not in COMPETITORS]
    if unknown:
        raise SystemExit(f"--only expected some of {', '.join(COMPETITORS)}, got {unknown}.")
    return chosen


def _needed(parts: dict[str, Any], name: str) -> dict[str, Any]:
    if name not in parts:
        raise SystemExit(f"The results of --part {name} are needed first, and there are none yet.")
    found: dict[str, Any] = parts[name]
    return found


def _finished(arguments: argparse.Namespace, part: str) -> Path:
    """Where finished runs are kept."""
    place = trial_file("certified", "runs") if arguments.out == RESULTS else arguments.out
    kept = place.with_name(f"{place.stem}-{part}.jsonl")
    if arguments.anew:
        kept.unlink(missing_ok=True)
    return kept


def _write_page(results: dict[str, Any], path: Path) -> None:
    """The page and the picture: those of the documentation, or beside the JSON of a trial."""
    from benchmarks.certified.picture import draw
    from benchmarks.certified.render import render

    trial = path != RESULTS
    picture = path.with_suffix(".png") if trial else picture_file("certified")
    page = path.with_suffix(".md") if trial else page_file("certified")
    write(render(results, picture.name if trial else f"../images/{picture.name}"), page)
    draw(results, picture)


if __name__ == "__main__":
    main()
