"""What the report shows of layer norms and times: charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.accuracy_claims import Column, select_column
from experiments.accuracy_grid import METHODS, method_name
from experiments.experiment import Chart, Record, Table
from experiments.report import conditions
from experiments.statistics import summary

MISSING = "–"
CLOSE = 0.1  # from the target, to count as close to it
COLORS = {
    "none": "#9a9a9a",
    "miyato": "#dd8452",
    "gouk": "#c44e52",
    "senderovich": "#4c86c6",
    "delattre": "#9467bd",
    "fast_clip": "#12a5b8",
    "spectral_clip": "#3f9b57",
}


def norms(record: Record) -> dict[str, float]:
    """The true norms at the end of training, by layer."""
    found = record.result.get("norms") or {}
    return {name: float(value) for name, value in found.items() if value is not None}


def distances(record: Record) -> list[float]:
    """How far each layer's norm is from the target."""
    target = float(record.config.get("max_norm", 1.0))
    return [abs(value - target) for value in norms(record).values()]


def times(records: Sequence[Record], column: Column, method: str) -> dict[tuple[int, int], float]:
    """Seconds of training by seed and epoch."""
    found: dict[tuple[int, int], float] = {}
    for record in select_column(records, column, method):
        timing = record.run.get("timing") or {}
        for epoch, seconds in enumerate(timing.get("epochs") or ()):
            found[int(record.config["seed"]), epoch] = float(seconds)
    return found


def norm_chart(records: Sequence[Record], columns: Sequence[Column]) -> Chart:
    """Norms by layer, one panel a column, one line a method; means over seeds."""
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
        f"{conditions(_of(records, columns))}",
        "Line chart of the norm of each layer by method, for each model and data set.",
    )


def precision_table(records: Sequence[Record], column: Column) -> Table:
    """How close to the target each method holds the layers, and how long an epoch takes."""
    header = (
        *("method", "largest norm", "smallest norm", "mean distance from 1"),
        *("layers within 10 %", "seconds an epoch", "times that of none"),
    )
    plain = summary([*times(records, column, "none").values()])
    rows = [_precision_row(records, column, method, plain.mean) for method in METHODS]
    caption = f"{column}. {conditions(_of(records, [column]))} Norms are at the end of training."
    return Table(header, rows, caption)


def growth_table(records: Sequence[Record], smaller: Column, larger: Column) -> Table:
    """How much longer an epoch takes on the larger model, method by method."""
    rows = []
    for method in METHODS:
        first = summary([*times(records, smaller, method).values()])
        second = summary([*times(records, larger, method).values()])
        factor = second.mean / first.mean if first.count and second.count else None
        written = MISSING if factor is None else f"× {factor:.2f}"
        rows.append([method_name(method), _spread(first), _spread(second), written])
    header = ("method", f"seconds: {smaller}", f"seconds: {larger}", "growth")
    caption = (
        "Seconds of training an epoch, mean and standard deviation over epochs and seeds. "
        f"{conditions(_of(records, [smaller, larger]))}"
    )
    return Table(header, rows, caption)


def _precision_row(
    records: Sequence[Record], column: Column, method: str, plain: float
) -> list[str]:
    runs = [record for record in select_column(records, column, method) if norms(record)]
    seconds = summary([*times(records, column, method).values()])
    ratio = f"{seconds.mean / plain:.2f}" if seconds.count and plain > 0 else MISSING
    if not runs:
        return [method_name(method), *[MISSING] * 4, _spread(seconds), ratio]
    close = [[one <= CLOSE for one in distances(record)] for record in runs]
    return [
        method_name(method),
        _spread(summary([max(norms(record).values()) for record in runs])),
        _spread(summary([min(norms(record).values()) for record in runs])),
        _spread(summary([summary(distances(record)).mean for record in runs])),
        f"{100 * summary([summary(one).mean for one in close]).mean:.0f} %",
        _spread(seconds),
        ratio,
    ]


def _spread(found: Any) -> str:
    if not found.count:
        return MISSING
    return f"{found.mean:.3g}" + ("" if found.std is None else f" ± {found.std:.2g}")


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
    color = {"domain": order, "range": [COLORS[method] for method in METHODS]}
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


def _of(records: Sequence[Record], columns: Sequence[Column]) -> list[Record]:
    return [
        record
        for column in columns
        for method in METHODS
        for record in select_column(records, column, method)
    ]
