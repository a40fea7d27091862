"""What the report shows: seconds and products over the number of values."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import Chart, Finding, Record, Section, Table
from experiments.figure_powerqr_time.run import NAMES, OURS, POWER_QR, REPEATED
from experiments.judging import statistics, verdicts
from experiments.measuring.stopwatch import disturbances, left_out, undisturbed
from experiments.report import line_charts as charts
from experiments.report.bar_charts import bars


def section(records: Sequence[Record]) -> Section:
    """The times over k, the vectors sent through the layer over k, and both in numbers."""
    if not records:
        return Section(["No runs yet."])
    config, quiet = records[0].config, undisturbed(records)
    width, side, steps = config["channels"], config["side"], config["iterations"]
    said = (
        f"A {config['kernel']}x{config['kernel']} convolution with {width} channels on "
        f"{side} x {side} images, zero padding, {len(_seeds(records))} random kernels, one a seed; "
        f"{steps} iterations; scale: {records[0].scale}."
    )
    text = (
        "The paper says that PowerQR with 100 iterations is dramatically more efficient than k "
        "successive runs of the power method as Virmaux and Scaman suggest, even if the deflation "
        "that these need is left out. Here both go through the layer's own forward and backward "
        "on one thread of a CPU (the paper: an A40 GPU). `svds` is ours: as one calls it, which "
        "applies a convolution in channels-last order, and through forward and backward as well. "
        "Its tolerance is the better of the two errors, or less if that is needed to be as "
        "accurate. "
        f"{disturbances([record.run['timing'] for record in quiet or records])}"
        f"{left_out(len(records) - len(quiet))}"
    )
    charts = [_chart(quiet, said, "seconds"), _chart(records, said, "num_matvecs")]
    return Section([text, *charts, _table(records, said)])


def _seeds(records: Sequence[Record]) -> set[int]:
    return {int(record.config["seed"]) for record in records}


def measured(record: Record, name: str, what: str) -> float:
    found = record.run["timing"] if what == "seconds" else record.result
    return float(found[what][name])


def _chart(records: Sequence[Record], said: str, what: str) -> Chart:
    rows = [
        {"k": record.config["k"], "method": name, "value": measured(record, name, what)}
        for record in records
        for name in NAMES
    ]
    timed = what == "seconds"
    title = "seconds" if timed else "vectors sent through the layer"
    spec = charts.lines(
        rows,
        charts.number("k", "k, the number of singular values", log=True),
        charts.number("value", title, log=True),
        charts.name("method", None, NAMES),
    )
    shown = "Seconds" if timed else "Vectors sent through the layer or its transpose"
    return Chart(
        "powerqr-seconds" if timed else "powerqr-matvecs",
        spec,
        f"{shown} for the k largest singular values. {said} Lines are means, bands what the "
        "kernels span.",
        f"{shown} over k on logarithmic axes, a line for each of {', '.join(NAMES)}.",
    )


def _table(records: Sequence[Record], said: str) -> Table:
    rows = []
    for k in sorted({int(record.config["k"]) for record in records}):
        at = verdicts.select(records, k=k)
        counts = [_over_seeds(at, name, "num_matvecs").mean for name in NAMES]
        errors = [_over_seeds(at, name, "errors").mean for name in NAMES[1:]]
        quiet = undisturbed(at)
        seconds = [_over_seeds(quiet, name, "seconds").written(spread=".1g") for name in NAMES]
        cells = [f"{s} ({c:.0f})" for s, c in zip(seconds, counts, strict=True)]
        rows.append([str(k), *cells, " / ".join(f"{error:.1e}" for error in errors)])
    caption = (
        "Seconds, mean and standard deviation over seeds, in brackets the vectors; and the "
        "largest relative errors of the last four methods, against ARPACK in float64, mean over "
        f"seeds. Without deflation there is one value alone. {said}"
    )
    return Table(["k", *NAMES, "errors"], rows, caption)


def _over_seeds(records: Sequence[Record], name: str, what: str) -> statistics.Summary:
    return statistics.summary([measured(record, name, what) for record in records])


def findings(records: Sequence[Record]) -> list[Finding]:
    """The times at the largest k of which all methods have an undisturbed one."""
    quiet = undisturbed(records)
    if not quiet:
        return []
    k = max(int(record.config["k"]) for record in quiet)
    at = verdicts.select(quiet, k=k)
    means = {name: _over_seeds(at, name, "seconds").mean for name in NAMES}
    text = (
        f"**{k} singular values** of a convolution with {at[0].config['channels']} channels take "
        f"{means[REPEATED]:.2g} s by {k} power methods, {means[POWER_QR]:.2g} s by PowerQR, and "
        f"{means[OURS]:.2g} s by our `svds`, to the accuracy of PowerQR or better."
    )
    chart = Chart(
        "finding-powerqr",
        bars({name: {"seconds": mean} for name, mean in means.items()}, "seconds", form=".2g"),
        f"Means over {len(_seeds(at))} kernels, one thread; scale: {at[0].scale}.",
        f"Bars of the seconds that each method takes for {k} singular values.",
    )
    return [Finding(text, chart)]
