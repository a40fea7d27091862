"""What the report shows: the table as the paper lays it out, and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables
from experiments.accuracy.claims import select_columns
from experiments.accuracy.findings import accuracies
from experiments.experiment import Finding, Record, Section
from experiments.table_batchnorm.grid import COLUMNS, CONCAT, FITTING, METHODS

INTRODUCTION = (
    "*BN clipped* clamps each batch norm to norm 1 on its own, as Gouk et al. do; FastClip-concat "
    "clips convolution and batch norm together. The first two rows are those of the other tables, "
    "with batch norms left free. In short runs FastClip-concat treats compositions every 100 steps "
    "in place of 500."
)


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out: ResNet-18, then DLA; and a chart of it."""
    shown = ("none", "fast_clip", *METHODS)
    fitting = [name for name in FITTING if select_columns(records, COLUMNS[:1], [name])]
    rows = ((*shown, *fitting), shown)
    found = [
        tables.by_metric(records, column, own) for column, own in zip(COLUMNS, rows, strict=True)
    ]
    drawn = tables.chart("table_batchnorm", records, COLUMNS, shown)
    return Section((INTRODUCTION, *found, drawn))


def findings(records: Sequence[Record]) -> list[Finding]:
    """ResNet-18 on CIFAR-10, with its batch norms free, clipped, or clipped with convolutions."""
    rows = ("none", "fast_clip", "fast_clip+bn", CONCAT, *METHODS[-2:], *FITTING)
    quoted = ("fast_clip", "fast_clip+bn", CONCAT)
    return accuracies("finding-batchnorm", records, COLUMNS[0], rows, quoted)
