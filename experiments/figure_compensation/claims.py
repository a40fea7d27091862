"""What the paper says of compensation by batch norm, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from experiments.accuracy.grid import NAMES
from experiments.experiment import Claim, Record, Verdict
from experiments.figure_compensation.grid import PAPERS, clipped_resnets, own_runs, target_of
from experiments.judging import verdicts
from experiments.judging.statistics import slope
from experiments.trained.resnet import compositions, parts
from experiments.trained.small_network import norms

SLIGHTLY = 0.5  # of what the target falls, in powers: the most that both together may fall
MUCH = 2.0  # times the norm of the convolution


def _slopes(records: Sequence[Record], part: str) -> list[float]:
    """For each seed, the power of the target that a norm follows, by least squares."""
    points: dict[int, list[tuple[float, float]]] = {}
    for record in verdicts.select(own_runs(records), method=PAPERS):
        point = (math.log(target_of(record)), math.log(norms(record, part)[-1]))
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
    for record in clipped_resnets(records):
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
