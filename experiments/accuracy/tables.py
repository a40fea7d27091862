"""Tables and charts of accuracies, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.accuracy.claims import Column, as_run, select_column, select_columns, values
from experiments.accuracy.grid import MODELS, method_name
from experiments.accuracy.published import METRICS, Place, find
from experiments.experiment import Chart, Record, Table
from experiments.judging.statistics import summary
from experiments.report import conditions

MISSING = "–"
NOTES = (
    "SpectralClip alone is finalized, which makes its norms exact, before it is tested and "
    "attacked. A run that diverged counts as chance on the test set, and not at all under attack. "
    "Beside each number stands the paper's own, of full training at full width. Its FastClip also "
    "raised norms below 0.95 to 1, which ours does not. Its CIFAR-10 "
    "attacks ran on normalized images cut to [0, 1], ours on pixels"
)
AS_PUBLISHED = "attacked as published"


def ours(
    records: Sequence[Record],
    column: Column,
    method: str,
    metric: str,
    *,
    as_published: bool = False,
) -> str:
    """Mean and standard deviation over seeds, in percent, and how many runs diverged."""
    by_seed = values(records, column, method, metric, as_published=as_published)
    found = summary([100 * value for value in by_seed.values()])
    runs = select_column(records, column, method)
    diverged = sum(bool(record.result.get("diverged")) for record in runs)
    marked = f" ({diverged} diverged)" if diverged else ""
    return found.written(".2f", ".2f") + marked


def by_column(
    records: Sequence[Record], metric: str, columns: Sequence[Column], methods: Sequence[str]
) -> Table:
    """One accuracy: a row a method, and for each column our number and the paper's."""
    columns = as_run(records, columns)
    titles = [column.title for column in columns]
    groups = [(title, column, metric) for title, column in zip(titles, columns, strict=True)]
    models = ", ".join(dict.fromkeys(MODELS[column.model] for column in columns))
    what = f"{models}: accuracy in percent, {METRICS[metric]}."
    return _table(records, groups, methods, f"{what} {_captioned(records, columns, methods)}")


def by_metric(records: Sequence[Record], column: Column, methods: Sequence[str]) -> Table:
    """One column of runs: a row a method, and for each accuracy our number and the paper's."""
    (column,) = as_run(records, [column])
    groups = [(title, column, metric) for metric, title in METRICS.items()]
    what = f"{column}: accuracy in percent."
    return _table(records, groups, methods, f"{what} {_captioned(records, [column], methods)}")


def _table(
    records: Sequence[Record],
    groups: Sequence[tuple[str, Column, str]],
    methods: Sequence[str],
    caption: str,
) -> Table:
    """Groups of columns, each with a title, a column of runs and an accuracy."""
    header, rows = ["method"], [[method_name(method)] for method in methods]
    for title, column, metric in groups:
        twice = _has_published_attack(records, column, metric)
        header += [title, AS_PUBLISHED, "paper"] if twice else [title, "paper"]
        for row, method in zip(rows, methods, strict=True):
            row.append(ours(records, column, method, metric))
            if twice:
                row.append(ours(records, column, method, metric, as_published=True))
            paper = find(_place(column, method, metric))
            row.append(MISSING if paper is None else str(paper))
    return Table(header, rows, caption)


def _has_published_attack(records: Sequence[Record], column: Column, metric: str) -> bool:
    return any(
        (record.result.get("paper_protocol") or {}).get(metric) is not None
        and record.config.get("model") == column.model
        and record.config.get("dataset") == column.dataset
        for record in records
    )


def _captioned(records: Sequence[Record], columns: Sequence[Column], methods: Sequence[str]) -> str:
    shown = select_columns(records, columns, methods)
    twice = any(record.result.get("paper_protocol") for record in shown)
    also = f"; the columns {AS_PUBLISHED!r} are of attacks like the paper's." if twice else "."
    return f"{conditions(shown)} {NOTES}{also}"


def chart(
    name: str, records: Sequence[Record], columns: Sequence[Column], methods: Sequence[str]
) -> Chart:
    """Each seed's accuracies and their mean as dots, and the paper's, method by method."""
    columns = as_run(records, columns)
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
        f"{conditions(select_columns(records, columns, methods))} {NOTES}.",
        f"Dot plot of accuracies on the test set, under PGD and under CW by method, for {what}.",
    )


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
