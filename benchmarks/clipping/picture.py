"""The picture of clipping: distances over their bound against the work."""

from __future__ import annotations

from pathlib import Path

from benchmarks.clipping.figures import EXACT, FFT, OURS, PUBLISHED
from benchmarks.common.pages import (
    Row,
    grouped,
    pyplot,
    save_picture,
    selected,
)

WITHIN = 1.001  # sigma_1 / c up to which a method has done what it was asked for
MARKS = {
    OURS: ("o", "#55a868", 3),
    EXACT: ("D", "#2d6a3e", 3),
    "scale": ("s", "#8c8c8c", 1),
    "FFT-clip, once": ("v", "#9ab3d5", 1),
    FFT: ("^", "#4c72b0", 2),
    PUBLISHED: ("X", "#c44e52", 2),
    "Algorithm 2, lambda 0.1": ("P", "#dd8452", 2),
    "Algorithm 2, lambda 1": ("*", "#e8b48f", 1),
}
LEAST_EXCESS = 5e-4  # nearer to the bound than this is drawn here


def draw(results: Row, path: Path) -> None:
    """Distance over its bound against the work, for everything that has not diverged."""
    found = drawable(results)
    if not found:
        return
    figure, axes = pyplot().subplots(figsize=(8.5, 6.0), layout="constrained")
    for method, group in grouped(found, "method").items():
        marker, color, order = MARKS[method]
        points = [(max(1.0, row["work"]), _excess(row), row["large"]) for row in group]
        for large in (False, True):
            chosen = [(x, y) for x, y, size in points if size == large]
            if chosen:
                axes.scatter(
                    *zip(*chosen, strict=True),
                    s=60 if large else 22,
                    marker=marker,
                    color=color,
                    edgecolors="black" if large else "none",
                    linewidths=0.6,
                    alpha=0.85,
                    zorder=order,
                )
        axes.scatter([], [], s=30, marker=marker, color=color, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]
    axes.set_yticks(ticks, [f"{1 + tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.8 * LEAST_EXCESS)
    axes.set_xlabel("work, in products with the layer (log scale)")
    axes.set_ylabel("distance / lower bound (log scale of the excess over 1)")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    save_picture(figure, path)


def drawable(results: Row) -> list[Row]:
    """What has not diverged, where there is a bound."""
    return [row for row in selected(results["rows"], diverged=False) if row["bound"]]


def _excess(row: Row) -> float:
    """The distance over the bound, less one; where c was missed, after scaling to c."""
    key = "distance" if row["norm"] <= WITHIN else "distance_at_c"
    return max(LEAST_EXCESS, row[key] / row["bound"] - 1)
