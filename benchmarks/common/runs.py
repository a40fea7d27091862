"""How a benchmark runs: on a few threads, with a note of what it ran on, and stored whole.

Imports nothing that loads BLAS, which reads its number of threads at that moment.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def results_file(name: str) -> Path:
    """Where the measurements are that the documentation shows."""
    return ROOT / "benchmarks" / "results" / f"{name}.json"


def trial_file(name: str, kind: str = "quick") -> Path:
    """Where those of a trial go, which say nothing of note."""
    return ROOT / "runs" / f"{name}-{kind}.json"


def limit_threads(threads: int = 1) -> None:
    """Limit torch and BLAS, here and in processes that are started; to be called first."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)
    import torch

    torch.set_num_threads(threads)


def surroundings(threads: int = 1) -> dict[str, Any]:
    """The versions and the machine, as they are stored with every run."""
    import numpy
    import scipy
    import torch

    import spectralclip

    modules = (torch, numpy, scipy, spectralclip)
    versions = {module.__name__: str(module.__version__) for module in modules}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": threads},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def measured(measure: Callable[[], dict[str, Any]], *, one_process: bool = True) -> dict[str, Any]:
    """What a part of a benchmark finds, with what it ran on and how long it took."""
    wall, processor = time.perf_counter(), time.process_time()
    found = measure()
    seconds, own = time.perf_counter() - wall, time.process_time() - processor
    return {
        **surroundings(),
        "seconds": seconds,
        # Near one where nothing else wanted the processor; other processes are not counted.
        "wall_over_cpu": seconds / own if one_process else None,
        **found,
    }


def load(path: Path) -> dict[str, Any]:
    """The measurements in a file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def save(results: dict[str, Any], path: Path) -> None:
    """Store measurements; a run that is stopped meanwhile leaves a whole file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    draft.replace(path)
