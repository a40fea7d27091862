"""The methods side by side: `python -m benchmarks.methods`.

Their estimates of norms, one clip of one layer, and a step of training. Writes all measurements to
one JSON file, part by part, and the page from it. A part that is run by itself replaces its
predecessor in the file.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.common.pages import page_file, write
from benchmarks.common.runs import (
    limit_threads,
    load,
    measured,
    results_file,
    save,
    trial_file,
)
from benchmarks.methods.render import page

if TYPE_CHECKING:
    from benchmarks.common.session import Session

RESULTS = results_file("methods")
PARTS = ("estimates", "clips", "steps")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute of all, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    arguments = parser.parse_args()
    path = trial_file("methods") if arguments.quick else RESULTS
    results: dict[str, Any] = {"quick": arguments.quick, "parts": {}}
    if (arguments.part or arguments.render) and path.exists():
        results = load(path)
    if not arguments.render:
        limit_threads()
        from benchmarks.common.session import Session

        for part in PARTS if arguments.part is None else (arguments.part,):
            measure = partial(_measure, part, Session(arguments.quick))
            results["parts"][part] = measured(measure)
            save(results, path)
    write(page(results), path.with_suffix(".md") if arguments.quick else page_file("method_costs"))


def _measure(part: str, session: Session) -> dict[str, Any]:
    from benchmarks.methods import clips, estimates, steps

    modules = {"estimates": estimates, "clips": clips, "steps": steps}
    found: dict[str, Any] = modules[part].measure(session)
    return found


if __name__ == "__main__":
    main()
