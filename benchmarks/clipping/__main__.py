"""Clipping side by side with its peers: `python -m benchmarks.clipping`.

Writes all measurements to one JSON file, after every configuration, and at the end renders the
page and the picture from it.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.pages import page_file, picture_file, write
from benchmarks.common.runs import (
    limit_threads,
    load,
    results_file,
    save,
    surroundings,
    trial_file,
)

if TYPE_CHECKING:
    from benchmarks.clipping.layers import ClipCase

RESULTS = results_file("clipping")
QUICK = (
    ("16->16 n8", 0.5),
    ("8->16 circular n12", 0.7),
    ("16->16 reflect n8", 0.5),
    ("16->32 stride 2 n12", 0.3),
    ("16->8 transposed 4x4 stride 2 n8", 0.5),
    ("16->16 conv+BN n8", 0.95),
)
DENSE_SHAPE = (4096, 1000)
QUICK_DENSE_SHAPE = (256, 100)


def main() -> None:
    arguments = _arguments()
    limit_threads()
    from benchmarks.clipping.figures import figures
    from benchmarks.clipping.picture import draw
    from benchmarks.clipping.render import render

    if not arguments.render:
        _measure(arguments)
    results = load(arguments.out)
    results["figures"] = figures(results)
    trial = arguments.out != RESULTS
    picture = arguments.out.with_suffix(".png") if trial else picture_file("clipping")
    page = arguments.out.with_suffix(".md") if trial else page_file("clipping")
    write(render(results, picture.name if trial else f"../images/{picture.name}"), page)
    draw(results, picture)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="six small ones, to try it out")
    parser.add_argument("--only", metavar="NAME", help="configurations whose name contains NAME")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    if arguments.out is None:
        trial = "quick" if arguments.quick else "only" if arguments.only is not None else None
        arguments.out = RESULTS if trial is None else trial_file("clipping", trial)
    return arguments


def _measure(arguments: argparse.Namespace) -> None:
    from benchmarks.clipping import measure
    from benchmarks.clipping.figures import figures
    from benchmarks.common.session import Session

    session, methods, cases = Session(arguments.quick), measure.methods(), _cases(arguments)
    results: dict[str, Any] = {
        **surroundings(),
        "settings": {
            "quick": arguments.quick,
            "only": arguments.only,
            "repeats": measure.REPEATS,
            "repeats_of_large_layers": 1,
            "not_repeated_beyond_seconds": measure.SLOW,
        },
        "complete": False,
        "rows": [],
        "certified": [],
        "dense": [],
        "failed": [],
    }

    def store() -> None:
        results["skipped"] = [asdict(skip) for skip in session.skipped]
        results["seconds"] = session.seconds()
        save(results, arguments.out)

    measure.warm_up(methods)
    for position, case in enumerate(cases, 1):
        problem = case.build()
        rows = measure.measure_case(session, case, problem, methods, results["failed"])
        results["rows"] += [asdict(row) for row in rows]
        results["certified"] += measure.measure_certified(case, problem, results["failed"])
        store()
        session.say(f"{position}/{len(cases)} {case.name}: {measure.in_short(rows)}")
    if arguments.only is None:
        shape = QUICK_DENSE_SHAPE if arguments.quick else DENSE_SHAPE
        results["dense"] = measure.measure_dense(shape, methods)
        session.say(f"dense {shape[0]}x{shape[1]}")
    results["figures"] = figures(results)
    results["complete"] = True
    store()


def _cases(arguments: argparse.Namespace) -> list[ClipCase]:
    from benchmarks.clipping.layers import large_cases, small_cases

    cases = small_cases() + large_cases()
    if arguments.quick:
        cases = [c for c in cases if not c.large and (c.kind, c.fraction) in QUICK]
    if arguments.only is not None:
        every, cases = cases, [case for case in cases if arguments.only in case.name]
        if not cases:
            names = "\n  ".join(case.name for case in every)
            raise SystemExit(f"No configuration has {arguments.only!r} in its name:\n  {names}")
    return cases


if __name__ == "__main__":
    main()
