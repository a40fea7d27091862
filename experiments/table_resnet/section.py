"""What the report shows: the table as the paper lays it out, and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables
from experiments.accuracy.grid import METHODS
from experiments.accuracy.published import METRICS
from experiments.experiment import Record, Section
from experiments.table_resnet.grid import COLUMNS

INTRODUCTION = (
    "The dense layers and convolutions are held to norm 1 while ResNet-18 trains, by each method. "
    "Sums at residual connections are halved. The paper gives numbers of the original model with "
    "batch norm only; SpectralClip is this library's own method."
)


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out, one accuracy after the other, and a chart of it."""
    shown = [tables.by_column(records, name, COLUMNS, METHODS) for name in METRICS]
    drawn = tables.chart("table_resnet", records, COLUMNS, METHODS)
    return Section((INTRODUCTION, *shown, drawn))
