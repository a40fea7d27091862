"""What the report shows: the table as the paper lays it out, and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables
from experiments.accuracy.claims import select_columns
from experiments.accuracy.findings import accuracies
from experiments.accuracy.grid import CLAMPED, CONCAT
from experiments.experiment import Chart, Finding, Record, Section, Table
from experiments.table_batchnorm.grid import COLUMNS, FITTING, METHODS, OURS

INTRODUCTION = (
    "*BN clipped* clamps each batch norm to norm 1 on its own, as Gouk et al. do; FastClip-concat "
    "clips convolution and batch norm together. The first two rows are those of the other tables, "
    "with batch norms left free. In short runs FastClip-concat treats compositions every 100 steps "
    "in place of 500."
)
RECIPE = (
    "Networks with clipped batch norms, by the recipe for networks under a bound: weights begin "
    "orthogonal with norm 1, scores times 100, Adam without weight decay. Claims on clipped batch "
    "norms rest on these."
)
CLIPPED = (*CLAMPED, OURS[0])


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out: ResNet-18, then DLA; and a chart of it."""
    shown = ("none", "fast_clip", *METHODS)
    fitting = [name for name in FITTING if select_columns(records, COLUMNS[:1], [name])]
    rows = ((*shown, *fitting), shown)
    found = [
        tables.by_metric(records, column, own) for column, own in zip(COLUMNS, rows, strict=True)
    ]
    drawn = tables.chart("table_batchnorm", records, COLUMNS, shown)
    return Section((INTRODUCTION, *found, drawn, *_bounded(records)))


def _bounded(records: Sequence[Record]) -> list[str | Table | Chart]:
    """The networks with clipped batch norms by the other recipe, where there are such runs."""
    columns = [column.bounded for column in COLUMNS]
    if not select_columns(records, columns, CLIPPED):
        return []
    found = [tables.by_metric(records, column, CLIPPED) for column in columns]
    drawn = tables.chart("table_batchnorm_bounded", records, columns, CLIPPED)
    return [RECIPE, *found, drawn]


def findings(records: Sequence[Record]) -> list[Finding]:
    """ResNet-18 on CIFAR-10, with its batch norms free, clipped, or clipped with convolutions."""
    column = COLUMNS[0]
    free = [(name, column) for name in ("none", "fast_clip", CONCAT, OURS[1], *FITTING)]
    clipped = [(name, column.learning(records)) for name in ("fast_clip+bn", OURS[0])]
    quoted = ("fast_clip", "fast_clip+bn", CONCAT)
    return accuracies("finding-batchnorm", records, column, dict(free + clipped), quoted)
