"""The picture of the trade-off: test accuracy and accuracy under attack, bound by bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.pages import Row, pyplot, save_picture
from benchmarks.tradeoff.curves import Point, points
from benchmarks.tradeoff.series import NORMED, PLAIN, SERIES
from experiments.judging.statistics import interval

COLORS = {
    "unclipped": "#8c8c8c",
    "unclipped + orthogonal start": "#4d4d4d",
    "SpectralClip": "#55a868",
    "FastClip": "#c44e52",
    "Gouk": "#ccb974",
    "Parametrize": "#4c72b0",
    "unclipped + BatchNorm": "#8c8c8c",
    "SpectralClip + BatchNorm": "#c44e52",
    "SpectralClip + ScalarBatchNorm": "#4c72b0",
    "SpectralClip + CenterNorm": "#55a868",
}


def is_drawable(results: Row) -> bool:
    """Whether there is a run to show."""
    return bool(results["parts"].get("train", {"rows": []})["rows"])


def draw(results: Row, path: Path) -> None:
    """Means over seeds with 95 % intervals, both ways, where there are two seeds or more."""
    if not is_drawable(results):
        return
    part = results["parts"]["train"]
    figure, panels = pyplot().subplots(1, 2, figsize=(10.5, 4.8), layout="constrained")
    for axes, panel in zip(panels, (PLAIN, NORMED), strict=True):
        names = [name for name, series in SERIES.items() if series.panel == panel]
        curves = {name: curve for name in names if (curve := points(part["rows"], name))}
        for name, curve in curves.items():
            _draw_curve(axes, name, curve)
        drawn = [point for curve in curves.values() for point in curve]
        if drawn:  # intervals of two seeds may reach far beyond all points
            axes.set_xlim(*_around([point.test for point in drawn]))
            axes.set_ylim(*_around([point.pgd for point in drawn]))
        axes.set_xlabel("test accuracy, %")
        axes.set_ylabel("accuracy under PGD at 2/255, %")
        axes.set_title(panel, fontsize=10)
        if axes.has_data():
            axes.legend(frameon=False, fontsize=8)
    save_picture(figure, path)


def _draw_curve(axes: Any, name: str, curve: list[Point]) -> None:
    color, ours = COLORS[name], SERIES[name].is_ours
    tests, attacks = [point.test for point in curve], [point.pgd for point in curve]
    line = "-" if SERIES[name].is_held else ""
    marker = "o" if SERIES[name].is_held else "s"
    axes.errorbar(
        tests,
        attacks,
        xerr=[_reach(point, "accuracy") for point in curve],
        yerr=[_reach(point, "pgd") for point in curve],
        color=color,
        label=name,
        linestyle=line,
        linewidth=2.4 if ours else 1.4,
        marker=marker,
        markersize=5,
        elinewidth=0.8,
    )
    for point in curve if SERIES[name].is_held else ():
        label = f"{point.bound:g}"
        axes.annotate(
            label,
            (point.test, point.pgd),
            xytext=(3, 3),
            textcoords="offset points",
            color=color,
            fontsize=7,
        )


def _around(values: list[float]) -> tuple[float, float]:
    return min(values) - 4, max(values) + 4


def _reach(point: Point, key: str) -> float:
    """From the mean to the end of its interval."""
    found = interval([100 * row[key] for row in point.rows])
    return found.high - found.mean if found.count > 1 else 0.0
