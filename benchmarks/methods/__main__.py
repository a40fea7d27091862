"""The methods side by side: `python -m benchmarks.methods`.

Their estimates of norms, one clip of one layer, and a step of training. Writes all measurements to
one JSON file, part by part, and the page from it. A part that is run by itself replaces its
predecessor in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.extraction.__main__ import _cpu_model, _versions
from benchmarks.methods.render import PAGE, page

if TYPE_CHECKING:
    from benchmarks.common.session import Session

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "methods.json"
TRIAL_RESULTS = ROOT / "runs" / "methods-quick.json"
PARTS = ("estimates", "clips", "steps")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute of all, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    arguments = parser.parse_args()
    path = TRIAL_RESULTS if arguments.quick else RESULTS
    results: dict[str, Any] = {"quick": arguments.quick, "parts": {}}
    if (arguments.part or arguments.render) and path.exists():
        results = json.loads(path.read_text())
    if not arguments.render:
        for part in PARTS if arguments.part is None else (arguments.part,):
            results["parts"][part] = measured(part, arguments.quick)
            _save(results, path)
    (path.with_suffix(".md") if arguments.quick else PAGE).write_text(page(results))


def measured(part: str, quick: bool) -> dict[str, Any]:
    """A part, with all that is to be known about the run it is from."""
    # BLAS reads these when it is loaded: everything that loads it is imported after.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    from benchmarks.common.session import Session

    torch.set_num_threads(1)
    wall, processor = time.perf_counter(), time.process_time()
    found = _measure(part, Session(quick))
    seconds = time.perf_counter() - wall
    return {
        "versions": _versions(),
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": 1},
        "seconds": seconds,
        # Near one where nothing else wanted the processor.
        "wall_over_cpu": seconds / (time.process_time() - processor),
        **found,
    }


def _measure(part: str, session: Session) -> dict[str, Any]:
    from benchmarks.methods.__main__ import clips as method_clips
    from benchmarks.methods.__main__ import estimates as method_estimates
    from benchmarks.methods.__main__ import steps as method_steps

    modules = {"estimates": method_estimates, "clips": method_clips, "steps": method_steps}
    found: dict[str, Any] = modules[part].measure(session)
    return found


def _save(results: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved: a run that is stopped leaves a whole file behind.
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    draft.replace(path)


if __name__ == "__main__":
    main()
