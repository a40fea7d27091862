"""Clipping during training, side by side with its peers: `python -m benchmarks.training`.

Writes all measurements to one JSON file, part by part, and then renders the page and the picture
from it. A part that is run by itself replaces its predecessor in the file.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.pages import page_file, picture_file, write
from benchmarks.common.runs import (
    limit_threads,
    load,
    measured,
    results_file,
    save,
    trial_file,
)

if TYPE_CHECKING:
    from benchmarks.common.session import Session

RESULTS = results_file("training")
TIMED = ("overhead", "network", "heads", "growth")  # one process; the others may use several
PARTS = (*TIMED, "tracker", "held", "counts")


def main() -> None:
    arguments = _arguments()
    limit_threads()
    from benchmarks.common.session import Session
    from benchmarks.training.figures import figures

    results = _stored(arguments)
    parts = () if arguments.render else PARTS if arguments.part is None else (arguments.part,)
    for part in parts:
        measure = partial(_measure, Session(arguments.quick), part, arguments)
        results["parts"][part] = measured(measure, one_process=part in TIMED)
        results["figures"] = figures(results)
        save(results, arguments.out)
    results["figures"] = figures(results)
    _write_page(results, arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute of each, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    parser.add_argument("--data", type=Path, help="the folder with MNIST and CIFAR-10")
    parser.add_argument("--resume", action="store_true", help="keep the finished runs of `held`")
    parser.add_argument("--processes", type=int, default=2, help="for the parts without timings")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    if arguments.out is None:
        arguments.out = trial_file("training") if arguments.quick else RESULTS
    return arguments


def _stored(arguments: argparse.Namespace) -> dict[str, Any]:
    """What earlier runs have left, unless all parts are measured anew."""
    if (arguments.part is not None or arguments.render) and arguments.out.exists():
        stored = load(arguments.out)
        if stored["quick"] == arguments.quick:
            return stored
    from benchmarks.training.models import CHANNELS

    settings = {"channels": ", ".join(map(str, CHANNELS))}
    return {"quick": arguments.quick, "settings": settings, "parts": {}}


def _measure(session: Session, part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.training import counts, growth, heads, held, network, overhead, tracker
    from benchmarks.training.data import default_folder

    folder = default_folder() if arguments.data is None else arguments.data
    found: dict[str, Any] = {
        "overhead": partial(overhead.measure, session, folder),
        "network": partial(network.measure, session, folder),
        "heads": partial(heads.measure, session),
        "growth": partial(growth.measure, session),
        "tracker": partial(tracker.measure, session, folder, arguments.processes),
        "held": partial(held.measure, session, folder, arguments.processes, _finished(arguments)),
        "counts": partial(counts.measure, session),
    }[part]()
    return found


def _finished(arguments: argparse.Namespace) -> Path:
    """Where finished runs of the longest part are kept, for a run that goes on where one ended."""
    kept = trial_file("training_held").with_suffix(".jsonl")
    kept.parent.mkdir(parents=True, exist_ok=True)
    if arguments.part in (None, "held") and not arguments.resume:
        kept.unlink(missing_ok=True)
    return kept


def _write_page(results: dict[str, Any], path: Path) -> None:
    """The pages and the picture: those of the documentation, or beside the JSON of a trial."""
    from benchmarks.training.hardware import HARDWARE, with_table
    from benchmarks.training.picture import draw
    from benchmarks.training.render import render

    trial = path != RESULTS
    picture = path.with_suffix(".png") if trial else picture_file("training")
    page = path.with_suffix(".md") if trial else page_file("training")
    write(render(results, picture.name if trial else f"../images/{picture.name}"), page)
    draw(results, picture)
    if not trial:
        write(with_table(HARDWARE.read_text(), results), HARDWARE)


if __name__ == "__main__":
    main()
