"""What the report shows: the table as the paper lays it out, and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables
from experiments.accuracy.claims import Column, select_columns
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
    "orthogonal with norm 1, scores times 100 (times 10 where nothing is held), Adam without "
    "weight decay. Claims on clipped batch norms rest on these. The first row tells what the "
    "recipe does by itself, the last two have batch norms that fit a bound."
)
BOUNDED_ROWS = ("none", *CLAMPED, *OURS, *FITTING)


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out: ResNet-18, then DLA; and a chart of it."""
    shown = ("none", "fast_clip", *METHODS)
    found = [tables.by_metric(records, column, shown) for column in COLUMNS]
    drawn = tables.chart("table_batchnorm", records, COLUMNS, shown)
    return Section((INTRODUCTION, *found, drawn, *_bounded(records)))


def _bounded(records: Sequence[Record]) -> list[str | Table | Chart]:
    """The networks by the other recipe, where there are such runs."""
    columns = [column.bounded for column in COLUMNS]
    rows = [name for name in BOUNDED_ROWS if select_columns(records, columns, [name])]
    if not rows:
        return []
    found = [
        tables.by_metric(records, column, [name for name in rows if _is_wanted(column, name)])
        for column in columns
    ]
    return [RECIPE, *found, tables.chart("table_batchnorm_bounded", records, columns, rows)]


def _is_wanted(column: Column, name: str) -> bool:
    """Of DLA there are no networks but those that are clipped layer by layer."""
    return column.model == COLUMNS[0].model or name in (*CLAMPED, *OURS)


def findings(records: Sequence[Record]) -> list[Finding]:
    """ResNet-18 on CIFAR-10, with its batch norms free, clipped, or clipped with convolutions."""
    column = COLUMNS[0]
    free = [(name, column) for name in ("none", "fast_clip", CONCAT)]
    held = ("fast_clip+bn", *OURS, *FITTING)
    clipped = [(name, column.learning(records)) for name in held]
    quoted = ("fast_clip", "fast_clip+bn", CONCAT)
    return accuracies("finding-batchnorm", records, column, dict(free + clipped), quoted)
