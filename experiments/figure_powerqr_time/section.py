"""What the report says of the PowerQR-time figure, and how its claims are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from experiments.experiment import Chart, Claim, Record, Section, Table, Verdict
from experiments.judging import statistics, verdicts
from experiments.measuring.stopwatch import PEACE, in_peace, left_out, peace
from experiments.report import line_charts as _charts

POWER_QR = "PowerQR"
REPEATED = "k power methods"
DEFLATED = "k power methods with deflation"
OURS = "svds"
OURS_PLAIN = "svds by forward and backward"
NAMES = (REPEATED, DEFLATED, POWER_QR, OURS, OURS_PLAIN)

COUNTS = (1, 2, 5, 10, 20, 50, 100)  # at the least
FROM = 10  # the smallest k that a claim speaks of
AHEAD = 2.0  # what we take "much more efficient" to mean, at the least


def section(records: Sequence[Record]) -> Section:
    """The times over k, the applications over k, and both in numbers."""
    if not records:
        return Section(["No runs yet."])
    config, quiet = records[0].config, _undisturbed(records)
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
        "Its tolerance is the better of the two errors, or a third of that, and so on, until it is "
        "as accurate; the time is that of the last attempt. "
        f"{peace([record.run['timing'] for record in quiet or records])}"
        f"{left_out(len(records) - len(quiet))}"
    )
    charts = [_chart(quiet, said, "seconds"), _chart(records, said, "applications")]
    return Section([text, *charts, _table(records, said)])


def _undisturbed(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if in_peace(record.run["timing"])]


def _seeds(records: Sequence[Record]) -> set[int]:
    return {int(record.config["seed"]) for record in records}


def _measured(record: Record, name: str, what: str) -> float:
    found = record.run["timing"] if what == "seconds" else record.result
    return float(found[what][name])


def _longest(record: Record, names: Sequence[str]) -> float:
    return max(_measured(record, name, "seconds") for name in names)


def _chart(records: Sequence[Record], said: str, what: str) -> Chart:
    rows = [
        {"k": record.config["k"], "method": name, "value": _measured(record, name, what)}
        for record in records
        for name in NAMES
    ]
    title = "seconds" if what == "seconds" else "vectors sent through the layer"
    spec = _charts.lines(
        rows,
        _charts.number("k", "k, the number of singular values", log=True),
        _charts.number("value", title, log=True),
        _charts.name("method", None, NAMES),
    )
    shown = "Seconds" if what == "seconds" else "Applications of the layer or its transpose"
    return Chart(
        f"powerqr-{what}",
        spec,
        f"{shown} for the k largest singular values. {said} Lines are means, bands what the "
        "kernels span.",
        f"{shown} over k on logarithmic axes, a line for each of {', '.join(NAMES)}.",
    )


def _table(records: Sequence[Record], said: str) -> Table:
    rows = []
    for k in sorted({int(record.config["k"]) for record in records}):
        at = verdicts.select(records, k=k)
        counts = [_over_seeds(at, name, "applications").mean for name in NAMES]
        errors = [_over_seeds(at, name, "errors").mean for name in NAMES[1:]]
        quiet = _undisturbed(at)
        seconds = [_over_seeds(quiet, name, "seconds").written(spread=".1g") for name in NAMES]
        cells = [f"{s} ({c:.0f})" for s, c in zip(seconds, counts, strict=True)]
        rows.append([str(k), *cells, " / ".join(f"{error:.1e}" for error in errors)])
    caption = (
        "Seconds, mean and standard deviation over seeds, in brackets the applications; and the "
        "largest relative errors of the last four methods, against ARPACK in float64, mean over "
        f"seeds. Without deflation there is one value alone. {said}"
    )
    return Table(["k", *NAMES, "errors"], rows, caption)


def _over_seeds(records: Sequence[Record], name: str, what: str) -> statistics.Summary:
    return statistics.summary([_measured(record, name, what) for record in records])


# --- The claims ---------------------------------------------------------------------------


def _faster(
    fast: Sequence[str], slow: Sequence[str], factor: float, least: int
) -> Callable[[Sequence[Record]], Verdict]:
    """Judges whether all of `fast` take less than a share of the time of each of `slow`."""

    def judge(records: Sequence[Record]) -> Verdict:
        quiet = _undisturbed(records)
        counts = sorted({*COUNTS, *(int(r.config["k"]) for r in records)})
        questions = []
        for k in (count for count in counts if count >= least):
            ours = verdicts.by_seed(quiet, lambda r: factor * _longest(r, fast), k=k)
            for name in slow:
                theirs = verdicts.by_seed(quiet, partial(_longest, names=[name]), k=k)
                share = "" if factor == 1 else f"{factor:g} times "
                words = f"k = {k}: {name} over {share}{fast[0]}"
                ratios = statistics.log_ratios(theirs, ours)
                questions.append(verdicts.Question(words, ratios, unit="factor"))
        return verdicts.judge(questions)

    return judge


_RULE = f"{PEACE} By the rule for comparisons."
_WHERE = "Section 3.1 and Appendix C.2"
CLAIMS = (
    Claim(
        "PowerQR finds k singular values much faster than k successive runs of the power method, "
        "even without the deflation that these need.",
        _WHERE,
        f"For each k of at least {FROM} that was run, seed by seed: the logarithm of the time of k "
        f"runs without deflation over {AHEAD:g} times that of PowerQR. {_RULE}",
        _faster([POWER_QR], [REPEATED], AHEAD, FROM),
    ),
    Claim(
        "PowerQR is much faster than the whole pipeline of Virmaux and Scaman, with deflation.",
        _WHERE,
        f"For each k of at least {FROM} that was run, seed by seed: the logarithm of the time of k "
        f"runs with deflation over {AHEAD:g} times that of PowerQR. {_RULE}",
        _faster([POWER_QR], [DEFLATED], AHEAD, FROM),
    ),
    Claim(
        "To the accuracy of the better of the two, our `svds` is faster than both, also through "
        "the layer's own forward and backward.",
        "of this library, not the paper",
        "For each k that was run, seed by seed: the logarithms of the times of PowerQR, and of k "
        f"runs with deflation, over that of the slower of the two `svds`. {_RULE}",
        _faster([OURS, OURS_PLAIN], [POWER_QR, DEFLATED], 1.0, 1),
    ),
)
