"""What the report shows: the table as the paper lays it out, and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables
from experiments.accuracy.claims import as_run
from experiments.accuracy.grid import METHODS, method_name
from experiments.experiment import Record, Section, Table
from experiments.judging.verdicts import select
from experiments.report import conditions
from experiments.table_dla.grid import COLUMNS

INTRODUCTION = (
    "The same for DLA, which has more and other layers. Its sums are left as they are, so that "
    "norms of 1 do not make its modules 1-Lipschitz."
)
WITHOUT = (
    "Without batch norms the paper could not train DLA by any method, its accuracy being almost "
    "that of a random classifier; it prints no numbers. A run whose loss is no number any more "
    "counts as chance, and is marked."
)


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out, the runs without batch norm, and a chart."""
    shown = [tables.by_metric(records, column, METHODS) for column in COLUMNS]
    drawn = tables.chart("table_dla", records, COLUMNS, METHODS)
    return Section((INTRODUCTION, *shown, drawn, WITHOUT, _untrained(records)))


def _untrained(records: Sequence[Record]) -> Table:
    rows = [
        [
            method_name(method),
            *(tables.ours(records, column.without, method, "test_accuracy") for column in COLUMNS),
        ]
        for method in METHODS
    ]
    runs = select(records, model="dla", batch_norm=False)
    header = ("method", *(column.data for column in as_run(runs, COLUMNS)))
    caption = f"DLA without batch norm: test accuracy in percent. {conditions(runs)}"
    return Table(header, rows, caption)
