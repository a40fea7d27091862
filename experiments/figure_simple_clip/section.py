"""What the report shows: norms after each epoch, and at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.accuracy.grid import NAMES
from experiments.experiment import Chart, Record, Section, Table
from experiments.figure_simple_clip.grid import METHODS, OURS, TARGET
from experiments.judging import verdicts
from experiments.report import conditions
from experiments.report import line_charts as charts
from experiments.trained import left_out, small_network, trained
from experiments.trained.small_network import SETTINGS, norms, plus_minus


def section(records: Sequence[Record]) -> Section:
    """The norm after each epoch, and at the end in numbers."""
    found = trained(records)
    if not found:
        return Section(["No runs yet.", *left_out(records)])
    text = (
        "A network of one convolution and one dense layer, in which each method clips the "
        "convolution to 1 while it is trained. The paper says that its method is the only one that "
        "does so correctly in all four settings. Norms are computed in float64, by a decomposition "
        "or by ARPACK, after every epoch. FastClip as printed takes steps of length 0.35, whatever "
        "the size of the image. These are too long where the leading singular vector is smooth, "
        "since each weight acts on all of it: our FastClip undoes a round that has made the norm "
        "larger, and where that is every round, nothing is clipped. As published, steps are "
        "shorter by the width of the image."
    )
    return Section([text, *left_out(records), _chart(found), _table(found)])


def _chart(records: Sequence[Record]) -> Chart:
    rows = [
        {
            "epoch": epoch,
            "norm": norm,
            "method": NAMES[record.config["method"]],
            "setting": title(record.config["setting"]),
        }
        for record in records
        for epoch, norm in enumerate(norms(record), start=1)
    ]
    spec = charts.lines(
        rows,
        charts.number("epoch", "epoch", whole=True),
        charts.number("norm", "spectral norm", log=True),
        charts.name("method", None, [NAMES[method] for method in METHODS]),
        panels=charts.name("setting", None, [title(setting) for setting in SETTINGS]),
        columns=2,
        level=TARGET,
        colors=[charts.METHOD_COLORS[method] for method in METHODS],
    )
    return Chart(
        "simple-clip",
        spec,
        "The true norm of the convolution after each epoch; the target is 1. "
        f"{conditions(records)} Lines are means, bands what the seeds span.",
        "Spectral norm over epochs in four panels, a line for each method, and a dashed line at "
        "the target, 1.",
    )


def title(setting: int) -> str:
    return f"{setting}. {SETTINGS[setting]}"


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for method in METHODS:
        found = [verdicts.select(records, method=method, setting=setting) for setting in SETTINGS]
        rows.append([NAMES[method], *(plus_minus([norms(r)[-1] for r in at]) for at in found)])
        if method == OURS:
            highest = [max((max(norms(r)) for r in at), default=math.nan) for at in found]
            final = [max((finalized_norm(r) for r in at), default=math.nan) for at in found]
            rows.append(["its largest at any epoch", *(f"{value:.4f}" for value in highest)])
            rows.append(["its largest when finalized", *(f"{value:.4f}" for value in final)])
    caption = f"The true norm of the convolution after the last epoch. {conditions(records)}"
    return Table(["method", *map(title, SETTINGS)], rows, caption)


def finalized_norm(record: Record) -> float:
    return float(record.result["final_norms"][small_network.LAYER])
