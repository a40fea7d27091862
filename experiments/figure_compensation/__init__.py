"""Figure: the batch norm makes up for what was clipped off the convolution before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from experiments.accuracy.grid import NAMES
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
from experiments.judging.statistics import slope
from experiments.report import conditions
from experiments.report import line_charts as _charts
from experiments.trained import left_out, run, trained
from experiments.trained import small_network as _small_network
from experiments.trained.resnet import compositions, parts
from experiments.trained.small_network import norms, plus_minus

METHODS = ("fast_clip", "spectral_clip")
PAPERS = "fast_clip"
SETTING = 2
# The paper says "various values"; a new convolution of this network has a norm of about 4.
TARGETS = (0.25, 0.5, 1.0, 2.0)
PARTS = {"conv": "convolution", "bn": "batch norm", "conv+bn": "both together"}
SLIGHTLY = 0.5  # of what the target falls, in powers: the most that both together may fall
MUCH = 2.0  # times the norm of the convolution


def grid(scale: Scale) -> list[Config]:
    """Each target with the paper's method and ours; the ResNet-18 is that of `figure_concat`."""
    targets = TARGETS if scale != "smoke" else TARGETS[1:3]
    return [
        _small_network.config(
            scale,
            setting=SETTING,
            method=method,
            target=target,
            seed=seed,
            measure="compositions",
        )
        for method in METHODS
        for target in targets
        for seed in range(_small_network.SIZES[scale].seeds)
    ]


def _target(record: Record) -> float:
    return float(record.config["max_norm"][_small_network.LAYER])


def _small(records: Sequence[Record]) -> list[Record]:
    """Runs of this experiment: those that it uses are of other networks."""
    return verdicts.select(trained(records), model="small")


# --- The report ---------------------------------------------------------------------------


def section(records: Sequence[Record]) -> Section:
    """Norms over epochs for each target, at the end over the targets, and those of ResNet-18."""
    small = _small(records)
    if not small:
        return Section(["No runs yet.", *left_out(records)])
    text = (
        "The convolution of the small network is clipped to several targets, and the batch norm "
        "behind it is left alone. The paper says that the batch norm compensates: the smaller the "
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
            "target": f"{_target(record):g}",
            "part": title,
        }
        for record in verdicts.select(small, method=PAPERS)
        for part, title in PARTS.items()
        for epoch, norm in enumerate(norms(record, part), start=1)
    ]
    targets = sorted({_target(record) for record in small})
    spec = _charts.lines(
        rows,
        _charts.number("epoch", "epoch", whole=True),
        _charts.number("norm", "spectral norm", log=True),
        _charts.name("target", "target", [f"{target:g}" for target in targets]),
        panels=_charts.name("part", None, list(PARTS.values())),
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
        for target in sorted({_target(record) for record in small}, reverse=True):
            found = [r for r in verdicts.select(small, method=method) if _target(r) == target]
            cells = [plus_minus([norms(record, part)[-1] for record in found]) for part in PARTS]
            rows.append([NAMES[method], f"{target:g}", *cells])
    caption = f"True norms after the last epoch. {conditions(small)}"
    return Table(["method", "target", *PARTS.values()], rows, caption)


def _resnet(records: Sequence[Record]) -> list[Table]:
    found = _clipped_resnets(records)
    if not found:
        return []
    rows = []
    for name in compositions(found[0]):
        cells = [plus_minus([norms(r, part)[-1] for r in found]) for part in parts(name)]
        rows.append([parts(name)[0], *cells])
    caption = f"ResNet-18 with convolutions clipped to 1 by {NAMES[PAPERS]}. {conditions(found)}"
    return [Table(["layer", *PARTS.values()], rows, caption)]


def _clipped_resnets(records: Sequence[Record]) -> list[Record]:
    found = verdicts.select(records, model="resnet18", method=PAPERS, measure="compositions")
    return [record for record in trained(found) if compositions(record)]


# --- The claims ---------------------------------------------------------------------------


def _slopes(records: Sequence[Record], part: str) -> list[float]:
    """For each seed, the power of the target that a norm follows, by least squares."""
    points: dict[int, list[tuple[float, float]]] = {}
    for record in verdicts.select(_small(records), method=PAPERS):
        point = (math.log(_target(record)), math.log(norms(record, part)[-1]))
        points.setdefault(int(record.config["seed"]), []).append(point)
    return [power for power in map(slope, points.values()) if power is not None]


def _judge_powers(
    *asked: tuple[str, str, Callable[[float], float]],
) -> Callable[[Sequence[Record]], Verdict]:
    """Judges what becomes of the powers of parts; each has to be above zero."""

    def judge(records: Sequence[Record]) -> Verdict:
        return verdicts.judge(
            [
                verdicts.Question(name, [sign(power) for power in _slopes(records, part)], unit="")
                for name, part, sign in asked
            ]
        )

    return judge


def _much_larger(records: Sequence[Record]) -> Verdict:
    logs = []
    for record in _clipped_resnets(records):
        last = record.result["epochs"][-1]["norms"]
        factors = [last[name] / last[parts(name)[0]] for name in compositions(record)]
        logs.append(math.log(max(factors) / MUCH))
    name = f"largest norm of both over {MUCH:g} times the convolution's"
    return verdicts.judge([verdicts.Question(name, logs, unit="factor")])


_POWER = (
    f"For {NAMES[PAPERS]}, seed by seed: p such that the true norm after the last epoch goes as "
    "target^p, by least squares of logarithms."
)
CLAIMS = (
    Claim(
        "As the target gets smaller, the norm of the batch norm becomes larger.",
        "Section 2.4 and Figure (a) on compensation",
        f"{_POWER} The number is -p of the batch norm. By the rule for comparisons.",
        _judge_powers(("-p of the batch norm", "bn", lambda p: -p)),
    ),
    Claim(
        "Meanwhile the norm of both together falls, but slightly.",
        "Figure (a) on compensation",
        f"{_POWER} The numbers are p of both together, and {SLIGHTLY:g} - p. By the rule for "
        "comparisons.",
        _judge_powers(
            ("p of both together", "conv+bn", lambda p: p),
            (f"{SLIGHTLY:g} - p of both together", "conv+bn", lambda p: SLIGHTLY - p),
        ),
    ),
    Claim(
        "In a ResNet-18 whose convolutions are clipped to 1, a convolution with its batch norm may "
        "have a much larger norm.",
        "Section 3.2.2 and Figure (b) on compensation",
        f"For {NAMES[PAPERS]} on CIFAR-10, seed by seed: the logarithm of the largest quotient, "
        "over the layers after the last epoch, of the true norm of both together and "
        f"{MUCH:g} times that of the convolution. By the rule for comparisons.",
        _much_larger,
    ),
)

EXPERIMENT = Experiment(
    name="figure_compensation",
    title="Batch norm compensates for clipping",
    where="Section 3.1, Figure: compensation of batch norm",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    uses=("figure_concat",),
)
