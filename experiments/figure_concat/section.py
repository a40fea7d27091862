"""What the report shows: norms of compositions, and training accuracies."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.grid import method_name
from experiments.experiment import Chart, Record, Section, Table
from experiments.report import conditions
from experiments.report import line_charts as charts
from experiments.trained import left_out, trained
from experiments.trained.resnet import (
    CONCAT,
    METHODS,
    PARTS,
    accuracy,
    compositions,
    largest,
    of,
    parts,
    watched,
)
from experiments.trained.small_network import norms, plus_minus


def section(records: Sequence[Record]) -> Section:
    """Three layers under FastClip-concat, training accuracies, and the norms at the end."""
    records = watched(records)
    lost, records = left_out(records), trained(records)
    if not records:
        return Section(["No runs yet.", *lost])
    text = (
        "FastClip-concat clips each convolution, and beside that the convolution together with the "
        "following batch norm. The paper says that convolutions are then at 1, that both together "
        "approach 1 while the batch norms alone may be far above, that training follows the same "
        "path as with FastClip, and that clipping the batch norms directly hinders it."
    )
    charts = [_layers(of(records, CONCAT)), _accuracies(records)]
    return Section([text, *lost, *filter(None, charts), _table(records)])


def _layers(found: Sequence[Record]) -> Chart | None:
    names = compositions(found[0]) if found else []
    if not names:
        return None
    chosen = [names[len(names) * place // 6] for place in (1, 3, 5)]
    rows = [
        {"epoch": epoch, "norm": norm, "layer": name.split("+")[0], "part": title}
        for record in found
        for name in chosen
        for title, part in zip(PARTS, parts(name), strict=True)
        for epoch, norm in enumerate(norms(record, part), start=1)
    ]
    spec = charts.lines(
        rows,
        charts.number("epoch", "epoch", whole=True),
        charts.number("norm", "spectral norm", log=True),
        charts.name("part", None, PARTS),
        panels=charts.name("layer", None, [name.split("+")[0] for name in chosen]),
        columns=3,
        level=1.0,
    )
    return Chart(
        "concat-layers",
        spec,
        f"True norms of three layers of ResNet-18 under FastClip-concat. {conditions(found)} Lines "
        "are means, bands what the seeds span.",
        "Spectral norms of a convolution, its batch norm and both together over epochs, in panels "
        "for three layers, and a dashed line at the target, 1.",
    )


def _accuracies(records: Sequence[Record]) -> Chart:
    rows = [
        {
            "epoch": epoch["epoch"],
            "accuracy": 100 * epoch["train_accuracy"],
            "method": method_name(method),
        }
        for method in METHODS
        for record in of(records, method)
        for epoch in record.result["epochs"]
    ]
    spec = charts.lines(
        rows,
        charts.number("epoch", "epoch", whole=True),
        charts.number("accuracy", "training accuracy in percent"),
        charts.name("method", None, [method_name(method) for method in METHODS]),
    )
    return Chart(
        "concat-accuracy",
        spec,
        f"Training accuracy of ResNet-18. {conditions(records)} Lines are means, bands what the "
        "seeds span.",
        "Training accuracy over epochs, a line for each way to deal with batch norms.",
    )


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for method in METHODS:
        found = of(records, method)
        norms_at_end = [
            plus_minus([largest(record, place) for record in found], 2)
            for place in range(len(PARTS))
        ]
        trained = plus_minus([100 * accuracy(record) for record in found], 1)
        rows.append([method_name(method), *norms_at_end, trained])
    header = ["method", *(f"largest: {part}" for part in PARTS), "training accuracy, %"]
    return Table(header, rows, f"After the last epoch; norms are true. {conditions(records)}")
