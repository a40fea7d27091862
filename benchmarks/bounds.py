"""Certified bounds, how tight and how dear: `python -m benchmarks.bounds`.

Writes all measurements to one JSON file, and the page from it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.extraction import _cpu_model, _versions

if TYPE_CHECKING:
    from torch import nn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "bounds.json"
PAGE = ROOT / "docs" / "benchmarks" / "bounds.md"


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
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    results = _measure()
    RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    PAGE.write_text(_page(results))


def _layers() -> list[tuple[str, Callable[[], nn.Module], tuple[int, ...], tuple[str, ...]]]:
    from torch import nn

    def conv(c_in: int, c_out: int, kernel: int = 3, **options: Any) -> Callable[[], nn.Module]:
        options.setdefault("padding", kernel // 2)
        return lambda: nn.Conv2d(c_in, c_out, kernel, bias=False, **options)

    both = ("default", "deterministic")
    reflect = conv(64, 64, padding_mode="reflect")
    return [
        ("64->64 zeros n16", conv(64, 64), (64, 16, 16), ("default", "rtol 1e-3")),
        ("64->64 zeros n32", conv(64, 64), (64, 32, 32), ("default", "rtol 1e-3")),
        ("256->256 zeros n8", conv(256, 256), (256, 8, 8), ("default",)),
        ("512->512 zeros n4", conv(512, 512), (512, 4, 4), ("default",)),
        ("64->128 zeros stride 2 n32", conv(64, 128, stride=2), (64, 32, 32), ("default",)),
        ("3->64 7x7 stride 2 n224", conv(3, 64, 7, stride=2), (3, 224, 224), ("default",)),
        ("64->64 circular n32", conv(64, 64, padding_mode="circular"), (64, 32, 32), ("default",)),
        ("64->64 reflect n16", reflect, (64, 16, 16), both),
        ("64->64 reflect n32", reflect, (64, 32, 32), ("default",)),
        (
            "128->128 replicate n16",
            conv(128, 128, padding_mode="replicate"),
            (128, 16, 16),
            ("default",),
        ),
        (
            "256->256 replicate n8",
            conv(256, 256, padding_mode="replicate"),
            (256, 8, 8),
            ("default",),
        ),
        ("16->16 reflect n32", conv(16, 16, padding_mode="reflect"), (16, 32, 32), both),
        ("64->64 every size", conv(64, 64), (64, 32, 32), ("every size",)),
        ("dense 4096->1000", lambda: nn.Linear(4096, 1000), (4096,), ("default",)),
    ]


def _measure() -> dict[str, Any]:
    import torch

    from benchmarks.clip_layers import true_norm
    from spectralclip import norm_bounds, norm_bounds_all_sizes

    torch.set_num_threads(1)
    requests: dict[str, dict[str, Any]] = {
        "default": {},
        "rtol 1e-3": {"rtol": 1e-3},
        "deterministic": {"deterministic": True},
    }
    rows = []
    for name, make, in_shape, asked in _layers():
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
            pairs = math.ceil(found.applications / 2)
            rows.append(
                BoundRow(name, what, found.kind, found.failure, lower, upper, pairs, seconds)
            )
            print(asdict(rows[-1]), flush=True)
    return {
        "versions": _versions(),
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": 1},
        "rows": [asdict(row) for row in rows],
        "figures": _figures(rows),
    }


def _figures(rows: list[BoundRow]) -> list[dict[str, Any]]:
    random = [row for row in rows if row.kind == "probabilistic" and row.asked == "default"]
    zeros = [row for row in rows if row.kind == "embedding"]
    at_size = [row for row in rows if row.asked != "every size"]
    (cholesky,) = [r for r in rows if r.layer == "64->64 reflect n16" and r.kind == "cholesky"]
    certificate = "Cholesky, 64 channels n = 16 reflect"
    listed = [
        ("probabilistic at failure 1e-6: pairs, most", "<=", 80, max(r.pairs for r in random)),
        ("probabilistic: upper / lower end, largest", "<=", 1.01, _widest(random)),
        ("zero padding, n >= 16: upper / truth, largest", "<=", 1.005, max(r.upper for r in zeros)),
        (f"{certificate}: upper / truth", "<=", 1.0002, cholesky.upper),
        (f"{certificate}: CPU seconds", "<=", 15, cholesky.seconds),
        ("upper / truth, smallest", ">=", 1, min(r.upper for r in rows)),
        ("lower / truth, largest", "<=", 1.00001, max(r.lower for r in at_size)),
    ]
    return [
        {
            "figure": figure,
            "target": f"{sign} {target}",
            "measured": measured,
            "met": measured <= target if sign == "<=" else measured >= target,
        }
        for figure, sign, target, measured in listed
    ]


def _widest(rows: list[BoundRow]) -> float:
    return max(row.upper / row.lower for row in rows)


def _page(results: dict[str, Any]) -> str:
    versions, machine = results["versions"], results["machine"]
    lines = [
        "# Bounds",
        "",
        "Made by `python -m benchmarks.bounds`; do not edit. Layers as torch initializes them,",
        f"in float32. Threads: 1. Machine: {machine['cpu']}, {machine['cores']} cores.",
        f"Versions: torch {versions['torch']}, NumPy {versions['numpy']}, Python",
        f"{versions['python']}.",
        "",
        "A *pair* is one vector through `M` and one through `M^T`. Ends are given over the true",
        "norm, which ARPACK or a dense decomposition finds in float64; for *every size* over the",
        "norm at one size. CPU seconds, one run.",
        "",
        "| figure | target | measured | met |",
        "| --- | --- | --- | --- |",
    ]
    for row in results["figures"]:
        met = "yes" if row["met"] else "**no**"
        lines.append(f"| {row['figure']} | {row['target']} | {row['measured']:.6g} | {met} |")
    lines += [
        "",
        "| layer | asked for | kind | failure | lower end | upper end | pairs | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        lines.append(
            f"| {row['layer']} | {row['asked']} | {row['kind']} | {row['failure']:g} "
            f"| {row['lower']:.5f} | {row['upper']:.5f} | {row['pairs']:g} "
            f"| {row['seconds']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
