"""Extraction side by side with its peers: `python -m benchmarks.extraction`.

Writes all measurements to one JSON file and renders the page of tables from it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "extraction.json"
QUICK_RESULTS = ROOT / "runs" / "extraction-quick.json"
QUICK_LAYERS = ("3->64 n32", "256->512 1x1 stride 2 n8", "64->64 circular n16")


def main() -> None:
    arguments = _arguments()
    # BLAS reads these when it is loaded: everything that loads it is imported after.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(arguments.threads)
    from benchmarks.extraction.render import write_page

    results = _measure(arguments.quick, arguments.threads)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    # A quick run says nothing of note: its page stays beside its data.
    write_page(results, arguments.out.with_suffix(".md") if arguments.quick else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extraction", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three small layers, to try it out")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and BLAS")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    arguments.out = arguments.out or (QUICK_RESULTS if arguments.quick else RESULTS)
    return arguments


def _measure(quick: bool, threads: int) -> dict[str, Any]:
    import torch

    from benchmarks.common.session import Session
    from benchmarks.extraction.__main__ import pairs, process, times
    from benchmarks.extraction.figures import figures
    from benchmarks.extraction.layers import LAYERS

    torch.set_num_threads(threads)
    session = Session(quick)
    results: dict[str, Any] = {
        "versions": _versions(),
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": threads},
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
    layers = [layer for layer in LAYERS if not quick or layer.name in QUICK_LAYERS]
    parts = {
        "pairs": pairs.measure_pairs,
        "leading": pairs.measure_leading,
        "times": times.measure_times,
    }
    for layer in layers:
        for part, measure in parts.items():
            results[part] += [asdict(row) for row in measure(session, layer)]
            session.say(f"{layer.name}: {part}")
    results["whole"] = [asdict(row) for row in times.measure_whole(session)]
    results["skipped"] = [asdict(skip) for skip in session.skipped]
    results["figures"] = figures(results)
    results["seconds"] = session.seconds()
    return results


def _versions() -> dict[str, str]:
    import numpy
    import scipy
    import torch

    import spectralclip

    modules = (torch, numpy, scipy, spectralclip)
    versions = {module.__name__: str(module.__version__) for module in modules}
    return {"python": platform.python_version(), **versions}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


if __name__ == "__main__":
    main()
