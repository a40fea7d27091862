"""Certified bounds, how tight and how dear: `python -m benchmarks.bounds`.

Writes all measurements to one JSON file, and the page from it.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.common.pages import page_file, write
from benchmarks.common.runs import limit_threads, load, results_file, save, surroundings

RESULTS = results_file("bounds")


@dataclass(frozen=True)
class BoundRow:
    """One interval."""

    layer: str
    asked: str
    kind: str
    failure: float
    lower: float  # over the true norm
    upper: float
    pairs: float
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    options = parser.parse_args()
    limit_threads()
    from benchmarks.bounds.render import render

    if not options.render:
        save(_measure(), RESULTS)
    write(render(load(RESULTS)), page_file("bounds"))


def _measure() -> dict[str, Any]:
    import torch

    from benchmarks.bounds.cases import layers
    from benchmarks.bounds.render import figures
    from benchmarks.clipping.layers import true_norm
    from spectralclip import norm_bounds, norm_bounds_all_sizes

    requests: dict[str, dict[str, Any]] = {
        "default": {},
        "tol 1e-3": {"tol": 1e-3},
        "deterministic": {"deterministic": True},
    }
    rows = []
    for name, make, in_shape, asked in layers():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = make().requires_grad_(False)
        truth = true_norm(layer, in_shape)
        for what in asked:
            began = time.process_time()
            if what == "every size":
                found = norm_bounds_all_sizes(layer)
            else:
                found = norm_bounds(layer, in_shape, **requests[what])
            seconds = time.process_time() - began
            lower, upper = found.lower / truth, found.upper / truth
            pairs = math.ceil(found.num_matvecs / 2)
            row = BoundRow(name, what, found.kind, found.failure, lower, upper, pairs, seconds)
            rows.append(asdict(row))
            print(rows[-1], flush=True)
    return {**surroundings(), "rows": rows, "figures": figures(rows)}


if __name__ == "__main__":
    main()
