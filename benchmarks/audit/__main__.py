"""Audits of whole models, how long and how much memory: `python -m benchmarks.audit`.

Each model is audited in a process of its own, by one worker or by two, of one thread each.
Writes all measurements to one JSON file, and the page from it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.audit.render import page
from benchmarks.common.pages import page_file, write
from benchmarks.common.runs import ROOT, limit_threads, load, results_file, save, surroundings

RESULTS = results_file("audit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "WORKERS"), help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_audited(options.one[0], int(options.one[1]))))
        return
    if not options.render:
        rows = [_in_process(name, workers) for name, workers in _runs()]
        save({**surroundings(), "rows": rows}, RESULTS)
    write(page(load(RESULTS)), page_file("audit"))


def _runs() -> list[tuple[str, int]]:
    from benchmarks.audit.models import MODELS

    return [(model.name, workers) for model in MODELS for workers in model.workers]


def _in_process(name: str, workers: int) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.audit", "--one", name, str(workers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row: dict[str, Any] = json.loads(found.stdout)
    print(row, flush=True)
    return row


def _audited(name: str, workers: int) -> dict[str, Any]:
    limit_threads()
    import torch

    from benchmarks.audit.models import MODELS
    from spectralclip import audit

    torch.manual_seed(0)
    (model,) = [model for model in MODELS if model.name == name]
    module, example = model.build(), model.example()
    began = time.perf_counter()
    found = audit(module, example, workers=workers)
    seconds = time.perf_counter() - began
    network = found.lipschitz
    assert network is not None
    bounded = network.upper < float("inf")
    products = [p for head in found.heads for p in (head.logit, head.value) if p is not None]
    return {
        "model": name,
        "parameters": found.parameters,
        "workers": workers,
        "seconds": seconds,
        "gigabytes": _peak_gigabytes(workers),
        "rows": len(found.layers),
        "chains": sum(layer.role == "chain" for layer in found.layers),
        "widest": max(layer.norm.upper / layer.norm.lower - 1 for layer in found.layers),
        "skipped": len(found.skipped),
        "heads": len(found.heads),
        "widest_head": max((p.upper / p.lower - 1 for p in products), default=None),
        "lower": network.lower,
        "upper": network.upper if bounded else None,
        "product": network.product if bounded else None,
        "unbounded": len(network.unbounded),
    }


def _peak_gigabytes(workers: int) -> float:
    """Of this process, and of the largest one that it has started, times their number."""
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return unit * (own + workers * child) / 1e9


if __name__ == "__main__":
    main()
