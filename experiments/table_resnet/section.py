"""What the report shows: the table as the paper lays it out, and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables
from experiments.accuracy.claims import select_columns
from experiments.accuracy.findings import accuracies
from experiments.accuracy.grid import BOUNDED, METHODS
from experiments.accuracy.published import METRICS
from experiments.experiment import Chart, Finding, Record, Section, Table
from experiments.table_resnet.grid import BOUNDED_COLUMNS, COLUMNS, NETWORK, NO_BN, WITH_BN

INTRODUCTION = (
    "The dense layers and convolutions are held to norm 1 while ResNet-18 trains, by each method. "
    "Sums at residual connections are halved. The paper gives numbers of the original model with "
    "batch norm only; SpectralClip is this library's own method."
)
RECIPE = (
    "The same networks without batch norm, by a recipe for networks under a bound: weights that "
    "begin orthogonal with norm 1, scores times 100 (times 10 where nothing is held), Adam without "
    "weight decay. Claims on networks without batch norm rest on these."
)


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out, one accuracy after the other, and a chart of it."""
    shown = [tables.by_column(records, name, COLUMNS, METHODS) for name in METRICS]
    drawn = tables.chart("table_resnet", records, COLUMNS, METHODS)
    return Section((INTRODUCTION, *shown, drawn, *_bounded(records)))


def _bounded(records: Sequence[Record]) -> list[str | Table | Chart]:
    """The networks without batch norm by the other recipe, where there are such runs."""
    rows = (*METHODS, NETWORK)
    if not select_columns(records, BOUNDED_COLUMNS, rows):
        return []
    found = [tables.by_column(records, name, BOUNDED_COLUMNS, rows) for name in METRICS]
    drawn = tables.chart("table_resnet_bounded", records, BOUNDED_COLUMNS, rows)
    return [RECIPE, *found, drawn]


def findings(records: Sequence[Record]) -> list[Finding]:
    """CIFAR-10 with batch norm, and without by the recipe of which claims speak."""
    bare = NO_BN[1].learning(records)
    rows = (*METHODS, NETWORK) if bare.recipe == BOUNDED else METHODS
    quoted = ("none", "fast_clip", "spectral_clip")
    return [
        finding
        for name, column, lines in (
            ("finding-resnet", WITH_BN[1], METHODS),
            ("finding-resnet-no-bn", bare, rows),
        )
        for finding in accuracies(name, records, column, dict.fromkeys(lines, column), quoted)
    ]
