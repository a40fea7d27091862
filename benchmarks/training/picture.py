"""The picture of clipping during training: norms over the steps, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.pages import Row, pyplot, save_picture
from benchmarks.training.figures import with_task
from benchmarks.training.overhead import LATER

COLORS = {
    "none": "#8c8c8c",
    "FastClip": "#c44e52",
    "FastClip, every 10": "#dd8452",
    "FastClip, by backward": "#e8b48f",
    "scale": "#4c72b0",
    "SpectralClip": "#55a868",
    "SpectralClip, compiled": "#a3d1ae",
}


def is_drawable(results: Row) -> bool:
    """Whether both halves are there."""
    return bool(_traces(results) and _overheads(results))


def draw(results: Row, path: Path) -> None:
    """Norms over the steps on the left, overheads on the right."""
    if not is_drawable(results):
        return
    figure, (left, right) = pyplot().subplots(
        1, 2, figsize=(11.0, 4.6), layout="constrained", width_ratios=(1.15, 1)
    )
    _draw_norms(left, _traces(results))
    _draw_overheads(right, _overheads(results))
    save_picture(figure, path)


def _traces(results: Row) -> list[Row]:
    rows = results["parts"].get("held", {"rows": []})["rows"]
    return with_task(rows, model="small convnet", padding="zeros", optimizer="SGD", seed=0)


def _overheads(results: Row) -> list[Row]:
    rows = results["parts"].get("overhead", {"rows": []})["rows"]
    return [row for row in rows if row["method"] != "none" and row["stage"] == LATER]


def _draw_norms(axes: Any, rows: list[Row]) -> None:
    for row in rows:
        method = row["task"]["method"]
        steps, norms = zip(*row["trace"], strict=True)
        width = 2.2 if method == "SpectralClip" else 1.4
        axes.plot(steps, norms, color=COLORS[method], linewidth=width, label=method)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    ticks = [1, 1.25, 1.5, 2, 2.5, 3, 4]
    axes.set_yticks(ticks, [f"{tick:g} c" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_title("largest true norm of the small convnet's layers (log scale)", fontsize=10)
    axes.legend(frameon=False, fontsize=9)


def _draw_overheads(axes: Any, rows: list[Row]) -> None:
    groups = list(dict.fromkeys((row["model"], row["batch"]) for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        chosen = {(row["model"], row["batch"]): row for row in rows if row["method"] == method}
        lengths = [100 * chosen[group]["overhead"] for group in groups]
        places = [place + (index - (len(methods) - 1) / 2) * width for place in range(len(groups))]
        bars = axes.barh(places, lengths, 0.9 * width, color=COLORS[method], label=method)
        axes.bar_label(bars, fmt="%.3g", fontsize=8, padding=2)
    axes.set_xscale("log")
    axes.set_xlim(right=2 * axes.get_xlim()[1])
    axes.set_yticks(range(len(groups)), [f"{model}\nbatch {batch}" for model, batch in groups])
    axes.tick_params(axis="y", labelsize=9)
    axes.invert_yaxis()
    axes.set_title("work after a step, in % of the step's time (log scale)", fontsize=10)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
