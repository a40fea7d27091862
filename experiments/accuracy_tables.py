"""Tables and charts of accuracies, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.accuracy_claims import Column, select_column, values
from experiments.accuracy_grid import DATASETS, MODELS, method_name
from experiments.experiment import Chart, Record, Table
from experiments.published import METRICS, Place, find
from experiments.report import conditions
from experiments.statistics import summary

MISSING = "–"
PAPER = (
    "Beside each number stands the paper's own, of full training at full width; its CIFAR-10 "
    "attacks ran on normalized images cut to [0, 1], ours on pixels."
)


def ours(records: Sequence[Record], column: Column, method: str, metric: str) -> str:
    """Mean and standard deviation over seeds, in percent, and how many runs diverged."""
    found = summary([100 * value for value in values(records, column, method, metric).values()])
    if not found.count:
        return MISSING
    spread = "" if found.std is None else f" ± {found.std:.2f}"
    runs = select_column(records, column, method)
    diverged = sum(bool(record.result.get("diverged")) for record in runs)
    return f"{found.mean:.2f}{spread}" + (f" ({diverged} diverged)" if diverged else "")


def by_column(
    records: Sequence[Record], metric: str, columns: Sequence[Column], methods: Sequence[str]
) -> Table:
    """One accuracy: a row a method, and for each column our number and the paper's."""
    titles = [f"{DATASETS[c.dataset]}, {'with' if c.batch_norm else 'no'} BN" for c in columns]
    header = ["method", *(words for title in titles for words in (title, "paper"))]
    rows = [
        [
            method_name(method),
            *(cell for column in columns for cell in _pair(records, column, method, metric)),
        ]
        for method in methods
    ]
    models = ", ".join(dict.fromkeys(MODELS[column.model] for column in columns))
    what = conditions(_shown(records, columns, methods))
    return Table(header, rows, f"{models}: accuracy in percent, {METRICS[metric]}. {what} {PAPER}")


def by_metric(records: Sequence[Record], column: Column, methods: Sequence[str]) -> Table:
    """One column of runs: a row a method, and for each accuracy our number and the paper's."""
    header = ["method", *(words for title in METRICS.values() for words in (title, "paper"))]
    rows = [
        [
            method_name(method),
            *(cell for metric in METRICS for cell in _pair(records, column, method, metric)),
        ]
        for method in methods
    ]
    what = conditions(_shown(records, [column], methods))
    return Table(header, rows, f"{column}: accuracy in percent. {what} {PAPER}")


def chart(
    name: str, records: Sequence[Record], columns: Sequence[Column], methods: Sequence[str]
) -> Chart:
    """Each seed's accuracies and their mean as dots, and the paper's, method by method."""
    rows = [
        row
        for column in columns
        for metric in METRICS
        for method in methods
        for row in _dots(records, column, method, metric)
    ]
    what = "; ".join(map(str, columns))
    return Chart(
        name,
        _spec(rows, [method_name(method) for method in methods], list(map(str, columns))),
        f"Accuracies of {what}: small dots are seeds, large ones their mean, diamonds the paper. "
        f"{conditions(_shown(records, columns, methods))} {PAPER}",
        f"Dot plot of accuracies on the test set, under PGD and under CW by method, for {what}.",
    )


def _shown(
    records: Sequence[Record], columns: Sequence[Column], methods: Sequence[str]
) -> list[Record]:
    return [
        record
        for column in columns
        for method in methods
        for record in select_column(records, column, method)
    ]


def _pair(records: Sequence[Record], column: Column, method: str, metric: str) -> list[str]:
    paper = find(_place(column, method, metric))
    return [ours(records, column, method, metric), MISSING if paper is None else str(paper)]


def _place(column: Column, method: str, metric: str) -> Place:
    return Place(column.model, column.dataset, column.batch_norm, method, metric)


def _dots(
    records: Sequence[Record], column: Column, method: str, metric: str
) -> list[dict[str, Any]]:
    found = [100 * value for value in values(records, column, method, metric).values()]
    paper = find(_place(column, method, metric))
    what = {"column": str(column), "metric": METRICS[metric], "method": method_name(method)}
    rows = [{**what, "kind": "ours, a seed", "accuracy": value} for value in found]
    if found:
        rows.append({**what, "kind": "ours, mean", "accuracy": summary(found).mean})
    if paper is not None:
        rows.append({**what, "kind": "paper", "accuracy": paper.mean})
    return rows


def _spec(
    rows: Sequence[dict[str, Any]], methods: Sequence[str], columns: Sequence[str]
) -> dict[str, Any]:
    kinds = ["ours, a seed", "ours, mean", "paper"]
    blue, orange = "var(--series-1)", "var(--series-2)"

    def told(key: str, marks: Sequence[Any]) -> dict[str, Any]:
        scale = {"domain": kinds, "range": list(marks)}
        return {key: {"field": "kind", "type": "nominal", "title": None, "scale": scale}}

    accuracy = {"field": "accuracy", "type": "quantitative", "title": "accuracy in percent"}
    title = {"title": None, "header": {"labelFontSize": 11}}
    return {
        "data": {"values": list(rows)},
        "facet": {
            "column": {"field": "column", "type": "nominal", "sort": list(columns), **title},
            "row": {"field": "metric", "type": "nominal", "sort": [*METRICS.values()], **title},
        },
        "spec": {
            "width": 165,
            "height": {"step": 17},
            "mark": {"type": "point", "filled": True, "opacity": 0.8},
            "encoding": {
                "x": {**accuracy, "scale": {"domain": [0, 100]}},
                "y": {"field": "method", "type": "nominal", "sort": list(methods), "title": None},
                **told("color", [blue, blue, orange]),
                **told("shape", ["circle", "circle", "diamond"]),
                **told("size", [14, 60, 60]),
            },
        },
    }
