"""What the report shows of layer norms and times: charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.accuracy.claims import Column, as_run, select_column, select_columns
from experiments.accuracy.grid import METHODS, method_name, short_name
from experiments.experiment import Chart, Finding, Record, Section, Table
from experiments.figure_layer_norms.grid import COLUMNS, DLA_CIFAR, RESNET_CIFAR
from experiments.figure_layer_norms.measured import (
    CLOSE,
    distances,
    mean,
    norms,
    timed,
)
from experiments.judging.statistics import Summary, summary
from experiments.measuring.stopwatch import disturbances, left_out, undisturbed
from experiments.report import conditions
from experiments.report.bar_charts import bars
from experiments.report.line_charts import METHOD_COLORS

MISSING = "–"
INTRODUCTION = (
    "Norms are measured by dense SVD or ARPACK in float64, on the networks of the tables with "
    "batch norm; batch norms themselves are not clipped. Times are those of a training step. The "
    "paper's figure comes without numbers that could be put beside ours: its text says that "
    "FastClip holds all layers close to 1, is faster than the relatively accurate alternatives, "
    "and slows down less from ResNet-18 to DLA."
)


def section(records: Sequence[Record]) -> Section:
    """Norms by layer, how precise and how fast each method is, and how its time grows."""
    return Section(
        (
            INTRODUCTION,
            norm_chart(records, COLUMNS),
            *(precision_table(records, column) for column in COLUMNS),
            time_table(records),
        )
    )


def norm_chart(records: Sequence[Record], columns: Sequence[Column]) -> Chart:
    """Norms by layer, one panel a column, one line a method; means over seeds."""
    columns = as_run(records, columns)
    rows = [
        row
        for column in columns
        for method in METHODS
        for row in _norm_rows(select_column(records, column, method), column, method)
    ]
    panel = {"field": "column", "type": "nominal", "sort": list(map(str, columns)), "title": None}
    return Chart(
        "layer_norms",
        {
            "data": {"values": rows},
            "facet": {"row": {**panel, "header": {"labelAngle": 0, "labelOrient": "top"}}},
            "spec": {"width": 680, "height": 190, "layer": _norm_layers()},
            "resolve": {"scale": {"x": "independent", "y": "independent"}},
        },
        "True norm of each dense layer and convolution at the end of training, from the first "
        "layer to the last, mean over seeds; the dashed line is the target. "
        f"{conditions(select_columns(records, columns, METHODS))}",
        "Line chart of the norm of each layer by method, for each model and data set.",
    )


def precision_table(records: Sequence[Record], column: Column) -> Table:
    """How close to the target each method holds the layers."""
    (column,) = as_run(records, [column])
    header = ("method", "largest norm", "smallest norm", "mean distance from 1", "within 10 %")
    rows = [_precision_row(records, column, method) for method in METHODS]
    caption = (
        f"{column}: norms at the end of training, mean and standard deviation over seeds, and the "
        "share of layers within 10 % of 1. "
        f"{conditions(select_columns(records, [column], METHODS))}"
    )
    return Table(header, rows, caption)


def time_table(records: Sequence[Record]) -> Table:
    """How long a step takes with each method, and how that grows with the network."""
    everything = timed(records)
    found = undisturbed(everything)
    columns = as_run(found, COLUMNS)
    smaller, larger = RESNET_CIFAR, DLA_CIFAR
    rows = []
    for method in METHODS:
        cells = []
        for column in columns:
            ours = mean(found, column, method)
            cells += [ours.written(), _ratio(ours, mean(found, column, "none"))]
        small, large = (mean(found, one, method) for one in (smaller, larger))
        rows.append([method_name(method), *cells, _ratio(large, small)])
    header = ["method", *(w for c in columns for w in (f"seconds: {c}", "times none")), "growth"]
    return Table(header, rows, _time_caption(found, len(everything) - len(found)))


def _time_caption(found: Sequence[Record], disturbed: int) -> str:
    if not found:
        return f"Seconds of a training step: no runs.{left_out(disturbed)}"
    configs = [record.config for record in found]
    seeds = len({config["seed"] for config in configs})
    widths = " or ".join(map(str, sorted({config["width"] for config in configs})))
    batches = " or ".join(map(str, sorted({config["batch"] for config in configs})))
    return (
        "Seconds of a training step by the clock on the wall, all networks and methods in turns: "
        f"the median of {configs[0]['steps']} steps after a few that do not count, and what comes "
        "now and then on top of it; mean and standard deviation over seeds. Growth is from "
        f"ResNet-18 to DLA on CIFAR-10. Scale {found[0].scale}: width {widths}, batches of "
        f"{batches}, {seeds} seed{'' if seeds == 1 else 's'}. "
        f"{disturbances([record.run['timing'] for record in found])}{left_out(disturbed)}"
    )


def _precision_row(records: Sequence[Record], column: Column, method: str) -> list[str]:
    runs = [record for record in select_column(records, column, method) if norms(record)]
    if not runs:
        return [method_name(method), *[MISSING] * 4]
    close = [[one <= CLOSE for one in distances(record)] for record in runs]
    return [
        method_name(method),
        summary([max(norms(record).values()) for record in runs]).written(),
        summary([min(norms(record).values()) for record in runs]).written(),
        summary([summary(distances(record)).mean for record in runs]).written(),
        f"{100 * summary([summary(one).mean for one in close]).mean:.0f} %",
    ]


def _ratio(above: Summary, below: Summary) -> str:
    return f"× {above.mean / below.mean:.2f}" if above.count and below.mean > 0 else MISSING


def _norm_rows(
    runs: Sequence[Record], column: Column, method: str
) -> list[dict[str, str | float | int]]:
    by_layer: dict[str, list[float]] = {}
    for record in runs:
        for name, value in norms(record).items():
            by_layer.setdefault(name, []).append(value)
    return [
        {
            "column": str(column),
            "method": method_name(method),
            "layer": place,
            "name": name,
            "norm": max(summary(found).mean, 1e-3),  # zero has no place on a scale of logarithms
        }
        for place, (name, found) in enumerate(by_layer.items(), 1)
    ]


def _norm_layers() -> list[dict[str, Any]]:
    order = [method_name(method) for method in METHODS]
    color = {"domain": order, "range": [METHOD_COLORS[method] for method in METHODS]}
    drawn = {
        "x": {
            "field": "layer",
            "type": "quantitative",
            "title": "layer, in the order of the network",
            "scale": {"zero": False, "nice": False, "padding": 8},
            "axis": {"tickMinStep": 1, "grid": False},
        },
        "y": {
            "field": "norm",
            "type": "quantitative",
            "title": "norm",
            "scale": {"type": "log", "nice": False, "padding": 10},
            "axis": {"tickCount": 5, "format": "~g"},
        },
        "color": {"field": "method", "type": "nominal", "title": None, "scale": color},
    }
    # With data of its own the line is drawn once, and not once for every row.
    target = {
        "data": {"values": [{"norm": 1.0}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--text)"},
        "encoding": {"y": drawn["y"]},
    }
    return [
        target,
        {"mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.7}, "encoding": drawn},
        {"mark": {"type": "point", "filled": True, "size": 22}, "encoding": drawn},
    ]


def findings(records: Sequence[Record]) -> list[Finding]:
    """The largest norm of any layer by method, of ResNet-18 on CIFAR-10."""
    found = {}
    for method in METHODS:
        runs = [one for one in select_column(records, RESNET_CIFAR, method) if norms(one)]
        if runs:
            found[method] = summary([max(norms(one).values()) for one in runs]).mean
    quoted = ("none", "fast_clip", "spectral_clip")
    if not all(method in found for method in quoted):
        return []
    parts = [f"{found[method]:.3g} with {short_name(method)}" for method in quoted]
    text = (
        f"**{RESNET_CIFAR}**: held to 1, the largest norm of any layer at the end of training is "
        f"{parts[0]}, {parts[1]} and {parts[2]}."
    )
    drawn = {method_name(method): {"largest norm": value} for method, value in found.items()}
    chart = Chart(
        "finding-norms",
        bars(drawn, "largest norm of any layer", form=".3g", level=1.0),
        f"Means over seeds; the dashed line is the target. "
        f"{conditions(select_columns(records, [RESNET_CIFAR], METHODS))}",
        "Bars of the largest norm of any layer by method, and a dashed line at 1.",
    )
    return [Finding(text, chart)]
