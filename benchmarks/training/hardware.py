"""What counted work would take on GPUs of some bandwidths: an estimate, for a page that says so."""

from __future__ import annotations

from benchmarks.common.pages import Row, between_marks, selected, table
from benchmarks.common.runs import ROOT
from benchmarks.training.methods import OURS, OURS_COMPILED

HARDWARE = ROOT / "docs" / "hardware.md"
MARK = "<!-- counts table -->"
MODEL = "ResNet-18, width 64"
LAUNCHES = (5e-6, 10e-6)  # seconds a kernel
STALL = 50e-6  # seconds a read
BANDWIDTHS = (300, 1000, 3000)  # GB a second


def with_table(text: str, results: Row) -> str:
    """The page with its table, if the run has what it shows."""
    part = results["parts"].get("counts")
    rows = [] if part is None else selected(part["rows"], model=MODEL)
    if part is None or not rows:
        return text
    if part["compiled"] is not None:
        rows += [_compiled(row, part["compiled"]) for row in selected(rows, method=OURS)]
    return between_marks(text, MARK, _table(rows))


def seconds(row: Row, launch: float, bandwidth: float) -> float:
    """Of a device that is busy with kernels or with memory, and waits for the host at each read."""
    return float(max(row["kernels"] * launch, row["bytes"] / bandwidth) + row["reads"] * STALL)


def _compiled(row: Row, compiled: Row) -> Row:
    """With the kernels of compiled code; it moves fewer bytes, but how many was not counted."""
    kernels = compiled["loops"] + compiled["external"] + compiled["around"]
    return {**row, "method": OURS_COMPILED, "kernels": kernels}


def _table(rows: list[Row]) -> str:
    header = ["method", "kernels", "reads", "MB", *[f"{speed} GB/s" for speed in BANDWIDTHS]]
    body = [
        [
            row["method"],
            str(row["kernels"]),
            str(row["reads"]),
            f"{row['bytes'] / 1e6:.0f}",
            *[_range(row, 1e9 * speed) for speed in BANDWIDTHS],
        ]
        for row in rows
    ]
    return table(header, body)


def _range(row: Row, bandwidth: float) -> str:
    few, many = (f"{1e3 * seconds(row, launch, bandwidth):.1f}" for launch in LAUNCHES)
    return f"{few} ms" if few == many else f"{few} to {many} ms"
