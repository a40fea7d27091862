"""Figure: which methods clip one convolution to 1, in four settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from experiments.accuracy.grid import METHODS as OF_TABLES
from experiments.accuracy.grid import NAMES, RIVALS
from experiments.experiment import (
    Chart,
    Claim,
    Config,
    Experiment,
    Record,
    Scale,
    Section,
    Table,
    Verdict,
)
from experiments.judging import verdicts
from experiments.judging.settling import CORRECT, off, too_early, unless
from experiments.judging.settling import RULE as SETTLING
from experiments.report import conditions
from experiments.report import line_charts as _charts
from experiments.trained import left_out, run, trained
from experiments.trained import small_network as _small_network
from experiments.trained.small_network import SETTINGS, norms, plus_minus

OURS = "spectral_clip"
METHODS = (*OF_TABLES[:-1], "fast_clip_printed", OURS)
TARGET = 1.0
# What this library is to hold at the end of every epoch, and when it is done.
HELD = {1: 1.03, 2: 1.01, 3: 1.01, 4: 1.03}
FINAL = 1.001


def grid(scale: Scale) -> list[Config]:
    """Every setting with every method, and several seeds."""
    return [
        _small_network.config(
            scale, setting=setting, method=method, target=TARGET, seed=seed, measure="layers"
        )
        for setting in SETTINGS
        for method in METHODS
        for seed in range(_small_network.SIZES[scale].seeds)
    ]


# --- The report ---------------------------------------------------------------------------


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
            "setting": _title(record.config["setting"]),
        }
        for record in records
        for epoch, norm in enumerate(norms(record), start=1)
    ]
    spec = _charts.lines(
        rows,
        _charts.number("epoch", "epoch", whole=True),
        _charts.number("norm", "spectral norm", log=True),
        _charts.name("method", None, [NAMES[method] for method in METHODS]),
        panels=_charts.name("setting", None, [_title(setting) for setting in SETTINGS]),
        columns=2,
        level=TARGET,
        colors=[_charts.METHOD_COLORS[method] for method in METHODS],
    )
    return Chart(
        "simple-clip",
        spec,
        "The true norm of the convolution after each epoch; the target is 1. "
        f"{conditions(records)} Lines are means, bands what the seeds span.",
        "Spectral norm over epochs in four panels, a line for each method, and a dashed line at "
        "the target, 1.",
    )


def _title(setting: int) -> str:
    return f"{setting}. {SETTINGS[setting]}"


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for method in METHODS:
        found = [verdicts.select(records, method=method, setting=setting) for setting in SETTINGS]
        rows.append([NAMES[method], *(plus_minus([norms(r)[-1] for r in at]) for at in found)])
        if method == OURS:
            highest = [max((max(norms(r)) for r in at), default=math.nan) for at in found]
            final = [max((_final(r) for r in at), default=math.nan) for at in found]
            rows.append(["its largest at any epoch", *(f"{value:.4f}" for value in highest)])
            rows.append(["its largest when finalized", *(f"{value:.4f}" for value in final)])
    caption = f"The true norm of the convolution after the last epoch. {conditions(records)}"
    return Table(["method", *map(_title, SETTINGS)], rows, caption)


def _final(record: Record) -> float:
    return float(record.result["final_norms"][_small_network.LAYER])


# --- The claims ---------------------------------------------------------------------------


def _worst(records: Sequence[Record], method: str) -> list[list[float]]:
    """For each seed, by which factor the norm is off after each epoch, in the worst setting."""
    by_seed: dict[int, list[list[float]]] = {}
    for record in verdicts.select(trained(records), method=method):
        by_seed.setdefault(record.config["seed"], []).append([off(n) for n in norms(record)])
    whole = [paths for paths in by_seed.values() if len(paths) == len(SETTINGS)]
    return [max(paths, key=lambda path: path[-1]) for paths in whole]


def _is_correct(records: Sequence[Record], method: str) -> Verdict:
    paths = _worst(records, method)
    margins = [math.log(CORRECT / path[-1]) for path in paths]
    name = f"{CORRECT:g} over the factor by which {NAMES[method]} is off"
    verdict = verdicts.judge([verdicts.Question(name, margins, unit="factor")])
    return unless(verdict, "contradicted", _too_early(records, method))


def _too_early(records: Sequence[Record], method: str) -> str:
    runs = verdicts.select(trained(records), method=method)
    return too_early(NAMES[method], runs, _worst(records, method))


def _others_are_not(records: Sequence[Record]) -> Verdict:
    verdict = verdicts.judge(
        [
            verdicts.Question(
                f"factor by which {NAMES[method]} is off, over {CORRECT:g}",
                [math.log(path[-1] / CORRECT) for path in _worst(records, method)],
                unit="factor",
            )
            for method in RIVALS
        ]
    )
    return unless(verdict, "reproduced", "".join(_too_early(records, each) for each in RIVALS))


def _ours_holds(records: Sequence[Record]) -> Verdict:
    questions = []
    for setting, limit in HELD.items():
        runs = verdicts.select(trained(records), method=OURS, setting=setting)
        held = [math.log(limit / max(norms(record))) for record in runs]
        final = [math.log(FINAL / _final(record)) for record in runs]
        questions.append(
            verdicts.Question(
                f"{_title(setting)}: {limit:g} over the largest norm of any epoch",
                held,
                unit="factor",
            )
        )
        questions.append(
            verdicts.Question(
                f"{_title(setting)}: {FINAL:g} over the norm at the end", final, unit="factor"
            )
        )
    # A bound is a bound: one run above it is enough.
    broken = [question.name for question in questions if min(question.values, default=0.0) < 0]
    if broken:
        return Verdict("contradicted", f"A run is above: {'; '.join(broken)}.")
    return verdicts.judge(questions)


_WHERE = "Section 3.2.1 and the figure that compares the methods on one convolution"
_OFF = (
    "the factor by which the true norm after the last epoch is off the target, above or below, in "
    "the worst of the four settings"
)
CLAIMS = (
    Claim(
        "FastClip clips the convolution to 1 in all four settings.",
        _WHERE,
        f"For FastClip with the published settings, seed by seed: the logarithm of {CORRECT:g} "
        f"over {_OFF}; norms between 1 / {CORRECT:g} and {CORRECT:g} are clipped to 1. By the "
        f"rule for comparisons. {SETTLING}",
        partial(_is_correct, method="fast_clip"),
    ),
    Claim(
        "It is the only method that does: each of the others fails in a setting.",
        _WHERE,
        f"For each of the four other methods, seed by seed: the logarithm of {_OFF}, over "
        f"{CORRECT:g}. By the rule for comparisons. {SETTLING}",
        _others_are_not,
    ),
    Claim(
        "SpectralClip holds the bound at every epoch, and exactly at the end.",
        "of this library, not the paper",
        "For each setting, seed by seed: the logarithm of 1.01 (1.03 for reflect and replicate "
        f"padding) over the largest true norm of any epoch, and of {FINAL:g} over that of the "
        "finalized model. By the rule for comparisons. Contradicted, too, if a single run is "
        "above.",
        _ours_holds,
    ),
    Claim(
        "A clip every 100 steps, with one iteration of its loops, is enough.",
        "Section 2.2 and Algorithm 3",
        f"The rule of the first claim, for FastClip as printed: seed by seed, the logarithm of "
        f"{CORRECT:g} over {_OFF}. {SETTLING}",
        partial(_is_correct, method="fast_clip_printed"),
    ),
)

EXPERIMENT = Experiment(
    name="figure_simple_clip",
    title="Clipping one convolution, by every method",
    where="Section 2.3, Figure: comparison of the clipping methods in a simple network",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
)
