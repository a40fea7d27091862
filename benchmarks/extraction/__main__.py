"""Extraction side by side with its peers: `python -m benchmarks.extraction`.

Writes all measurements to one JSON file, and from it the page, the picture and the README's table.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.pages import page_file, picture_file, write
from benchmarks.common.runs import (
    ROOT,
    limit_threads,
    load,
    results_file,
    save,
    surroundings,
    trial_file,
)

RESULTS = results_file("extraction")
README = ROOT / "README.md"
QUICK_LAYERS = ("3->64 n32", "256->512 1x1 stride 2 n8", "64->64 circular n16")


def main() -> None:
    arguments = _arguments()
    limit_threads(arguments.threads)
    from benchmarks.extraction import picture
    from benchmarks.extraction.render import render

    if not arguments.render:
        save(_measure(arguments.quick, arguments.threads), arguments.out)
    results = load(arguments.out)
    if arguments.quick:  # says nothing of note: its page stays beside its data
        write(render(results), arguments.out.with_suffix(".md"))
        return
    write(render(results), page_file("extraction"))
    picture.draw(results, picture_file("extraction"))
    README.write_text(picture.with_table(README.read_text(), results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extraction", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three small layers, to try it out")
    parser.add_argument("--render", action="store_true", help="write the pages from the JSON only")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and BLAS")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    arguments.out = arguments.out or (trial_file("extraction") if arguments.quick else RESULTS)
    return arguments


def _measure(quick: bool, threads: int) -> dict[str, Any]:
    from benchmarks.common.session import Session
    from benchmarks.extraction import pairs, process, times
    from benchmarks.extraction.figures import figures
    from benchmarks.extraction.layers import LAYERS

    session = Session(quick)
    results: dict[str, Any] = {
        **surroundings(threads),
        "settings": {
            "quick": quick,
            "seeds": pairs.SEEDS,
            "scales": pairs.SCALES,
            "power_limit_pairs": pairs.POWER_LIMIT,
            "power_search_limit": times.SEARCH_LIMIT,
            "power_timed_limit": times.TIMED_LIMIT,
            "repeats": times.REPEATS,
            "repeats_on_the_largest_layer": times.LARGE_REPEATS,
        },
        "memory": process.measure_memory(),
        "import": process.measure_import(),
        "pairs": [],
        "leading": [],
        "times": [],
    }
    parts = {
        "pairs": pairs.measure_pairs,
        "leading": pairs.measure_leading,
        "times": times.measure_times,
    }
    for layer in LAYERS:
        if quick and layer.name not in QUICK_LAYERS:
            continue
        for part, measure in parts.items():
            results[part] += [asdict(row) for row in measure(session, layer)]
            session.say(f"{layer.name}: {part}")
    results["whole"] = [asdict(row) for row in times.measure_whole(session)]
    results["skipped"] = [asdict(skip) for skip in session.skipped]
    results["figures"] = figures(results)
    results["seconds"] = session.seconds()
    return results


if __name__ == "__main__":
    main()
