"""Clipping during training, side by side with its peers: `python -m benchmarks.training`.

Writes all measurements to one JSON file, part by part, and then renders the page and the picture
from it. A part that is run by itself replaces its predecessor in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.extraction.__main__ import _cpu_model, _versions

if TYPE_CHECKING:
    from benchmarks.common.session import Session

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "training.json"
TRIAL_RESULTS = ROOT / "runs" / "training-quick.json"
TIMED = ("overhead", "growth")  # one process; the others may use several
PARTS = (*TIMED, "tracker", "held")


def main() -> None:
    arguments = _arguments()
    # BLAS reads these when it is loaded: everything that loads it is imported after. Processes
    # that are started inherit them.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    from benchmarks.common.session import Session
    from benchmarks.training.render import write_page

    torch.set_num_threads(1)
    session = Session(arguments.quick)
    results = _stored(arguments)
    for part in PARTS if arguments.part is None else (arguments.part,):
        results["parts"][part] = _measured(session, part, arguments)
        _save(results, arguments.out)
    write_page(results, arguments.out if arguments.out != RESULTS else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute of each, to try it out")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--data", type=Path, help="the folder with MNIST and CIFAR-10")
    parser.add_argument("--processes", type=int, default=2, help="for the parts without timings")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    if arguments.out is None:
        arguments.out = TRIAL_RESULTS if arguments.quick else RESULTS
    return arguments


def _stored(arguments: argparse.Namespace) -> dict[str, Any]:
    """What earlier runs have left, unless all parts are measured anew."""
    if arguments.part is not None and arguments.out.exists():
        stored: dict[str, Any] = json.loads(arguments.out.read_text())
        if stored["quick"] == arguments.quick:
            return stored
    from benchmarks.training.models import CHANNELS

    settings = {"channels": ", ".join(map(str, CHANNELS))}
    return {"quick": arguments.quick, "settings": settings, "parts": {}}


def _measured(session: Session, part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A part with all that is to be known about the run it is from."""
    from benchmarks.training.__main__ import growth as training_growth
    from benchmarks.training.__main__ import held as training_held
    from benchmarks.training.__main__ import overhead as training_overhead
    from benchmarks.training.__main__ import tracker as training_tracker
    from benchmarks.training.data import default_folder

    folder = default_folder() if arguments.data is None else arguments.data
    wall, processor = time.perf_counter(), time.process_time()
    found = {
        "overhead": partial(training_overhead.measure, session, folder),
        "growth": partial(training_growth.measure, session),
        "tracker": partial(training_tracker.measure, session, folder, arguments.processes),
        "held": partial(training_held.measure, session, folder, arguments.processes),
    }[part]()
    seconds = time.perf_counter() - wall
    return {
        "versions": _versions(),
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": 1},
        "seconds": seconds,
        # Near one where nothing else wanted the processor.
        "wall_over_cpu": seconds / (time.process_time() - processor) if part in TIMED else None,
        **found,
    }


def _save(results: dict[str, Any], path: Path) -> None:
    from benchmarks.training.figures import figures

    results["figures"] = figures(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved: a run that is stopped leaves a whole file behind.
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    draft.replace(path)


if __name__ == "__main__":
    main()
