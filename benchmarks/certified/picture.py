"""The picture of certified accuracy: each competitor, from no radius to the largest."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks.certified.competitors import COMPETITORS, OURS
from benchmarks.certified.training import RADII
from benchmarks.common.pages import Row, pyplot, save_picture

COLORS = {
    "none": "#8c8c8c",
    "SpectralClip": "#55a868",
    "Parametrize": "#2d6a4f",
    "AOL": "#4c72b0",
    "SOC": "#64b5cd",
    "Cayley": "#8172b3",
    "LOT": "#da8bc3",
    "AOC": "#937860",
    "Gouk": "#ccb974",
    "FastClip": "#c44e52",
}


def is_drawable(results: Row) -> bool:
    """Whether there is a run to show."""
    return bool(results["parts"].get("train", {"rows": []})["rows"])


def draw(results: Row, path: Path) -> None:
    """Means over seeds, with the seeds themselves as points."""
    if not is_drawable(results):
        return
    part = results["parts"]["train"]
    figure, axes = pyplot().subplots(figsize=(8.0, 4.8), layout="constrained")
    for name in COMPETITORS:
        rows = [row for row in part["rows"] if row["task"]["competitor"] == name]
        if not rows:
            continue
        curves = [
            [100 * row["accuracy"], *[100 * row["certified"][str(r)] for r in RADII]]
            for row in rows
        ]
        means = [fmean(values) for values in zip(*curves, strict=True)]
        width = 2.4 if name == OURS else 1.4
        axes.plot((0, *RADII), means, color=COLORS[name], linewidth=width, label=name)
        for curve in curves:
            axes.plot((0, *RADII), curve, ".", color=COLORS[name], markersize=4)
    axes.set_xticks((0, *RADII), ["0", *[f"{radius}/255" for radius in RADII]])
    axes.set_xlabel("radius in the l2 norm")
    axes.set_ylabel("certified accuracy, %")
    axes.set_ylim(bottom=0)
    axes.set_title(f"after {part['minutes']:g} minutes of training each", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    save_picture(figure, path)
