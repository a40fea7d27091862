"""Memory and import time, each in fresh processes."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.common.runs import ROOT

_IMPORT = """
import time, torch
began = time.perf_counter()
import spectralclip
print(time.perf_counter() - began)
"""


def measure_import(repeats: int = 5) -> dict[str, float]:
    """Seconds that `import spectralclip` takes after `import torch`."""
    _run("-c", _IMPORT)
    return {"seconds": statistics.median(_run("-c", _IMPORT) for _ in range(repeats))}


def measure_memory() -> dict[str, object]:
    """Peak resident memory of `svds(k=1)` on the largest layer, beyond what was there before."""
    return {
        "layer": "3->64 7x7 stride 2 n224",
        "megabytes": _run("-m", "benchmarks.extraction.process"),
    }


def _run(*arguments: str) -> float:
    result = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def _resident_now() -> float:
    """Bytes in memory now (Linux), or the most there ever were."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return _resident_most()
    return float(pages * resource.getpagesize())


def _resident_most() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else 1024 * most)


def _peak_of_svds() -> float:
    import torch

    from benchmarks.extraction.layers import LAYERS
    from spectralclip import svds

    torch.set_num_threads(1)
    layer = next(layer for layer in LAYERS if layer.large)
    module = layer.build()
    before = _resident_now()
    svds(module, layer.in_shape, 1, tol=1e-3)
    return (_resident_most() - before) / 1e6


if __name__ == "__main__":
    print(_peak_of_svds())
