"""What the report shows: norms of convolution, batch norm and both together."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.grid import NAMES
from experiments.experiment import Chart, Record, Section, Table
from experiments.figure_compensation.grid import (
    METHODS,
    PAPERS,
    clipped_resnets,
    own_runs,
    target_of,
)
from experiments.judging import verdicts
from experiments.report import conditions
from experiments.report import line_charts as charts
from experiments.trained import left_out
from experiments.trained.resnet import compositions, parts
from experiments.trained.small_network import norms, plus_minus

PARTS = {"conv": "convolution", "bn": "batch norm", "conv+bn": "both together"}


def section(records: Sequence[Record]) -> Section:
    """Norms over epochs for each target, at the end over the targets, and those of ResNet-18."""
    small = own_runs(records)
    if not small:
        return Section(["No runs yet.", *left_out(records)])
    text = (
        "The convolution of the small network is clipped to several targets, and the following "
        "batch norm is left alone. The paper says that the batch norm compensates: the smaller the "
        "target, the larger its norm, so that the norm of both together falls only slightly; and "
        "that in a clipped ResNet-18 both together may have a norm far above 1."
    )
    return Section(
        [text, *left_out(records), _over_epochs(small), _table(small), *_resnet(records)]
    )


def _over_epochs(small: Sequence[Record]) -> Chart:
    rows = [
        {
            "epoch": epoch,
            "norm": norm,
            "target": f"{target_of(record):g}",
            "part": title,
        }
        for record in verdicts.select(small, method=PAPERS)
        for part, title in PARTS.items()
        for epoch, norm in enumerate(norms(record, part), start=1)
    ]
    targets = sorted({target_of(record) for record in small})
    spec = charts.lines(
        rows,
        charts.number("epoch", "epoch", whole=True),
        charts.number("norm", "spectral norm", log=True),
        charts.name("target", "target", [f"{target:g}" for target in targets]),
        panels=charts.name("part", None, list(PARTS.values())),
        columns=3,
    )
    return Chart(
        "compensation",
        spec,
        f"True norms after each epoch; the convolution is clipped by {NAMES[PAPERS]}. "
        f"{conditions(small)} Lines are means, bands what the seeds span.",
        "Spectral norms of convolution, batch norm and both together over epochs, a panel each, "
        "and a line for each target.",
    )


def _table(small: Sequence[Record]) -> Table:
    rows = []
    for method in METHODS:
        for target in sorted({target_of(record) for record in small}, reverse=True):
            found = [r for r in verdicts.select(small, method=method) if target_of(r) == target]
            cells = [plus_minus([norms(record, part)[-1] for record in found]) for part in PARTS]
            rows.append([NAMES[method], f"{target:g}", *cells])
    caption = f"True norms after the last epoch. {conditions(small)}"
    return Table(["method", "target", *PARTS.values()], rows, caption)


def _resnet(records: Sequence[Record]) -> list[Table]:
    found = clipped_resnets(records)
    if not found:
        return []
    rows = []
    for name in compositions(found[0]):
        cells = [plus_minus([norms(r, part)[-1] for r in found]) for part in parts(name)]
        rows.append([parts(name)[0], *cells])
    caption = f"ResNet-18 with convolutions clipped to 1 by {NAMES[PAPERS]}. {conditions(found)}"
    return [Table(["layer", *PARTS.values()], rows, caption)]
