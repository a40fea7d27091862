"""Figure 3: the norms of all layers, and the time of an epoch, by method.

It has no runs of its own: norms and times are those of the networks in the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from experiments import _layer_norms_section as layers
from experiments.accuracy_claims import Column, select_column
from experiments.accuracy_grid import METHODS, RIVALS
from experiments.experiment import (
    Claim,
    Config,
    Context,
    Experiment,
    Record,
    Result,
    Scale,
    Section,
    Verdict,
)
from experiments.statistics import log_ratios, summary
from experiments.verdicts import Question, by_seed, judge

RESNET_CIFAR, RESNET_MNIST = Column("resnet18", "cifar10"), Column("resnet18", "mnist")
DLA_CIFAR = Column("dla", "cifar10")
COLUMNS = (RESNET_CIFAR, RESNET_MNIST, DLA_CIFAR)
ACCURATE = ("senderovich", "delattre")  # what the paper calls relatively accurate


def grid(scale: Scale) -> list[Config]:
    """Nothing to run: the tables' runs are measured."""
    return []


def run(config: Config, context: Context) -> Result:
    """There is nothing to run.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "figure_layer_norms expected no runs of its own, got one; run table_resnet and table_dla."
    )


def section(records: Sequence[Record]) -> Section:
    """Norms by layer, how precise and how fast each method is, and how its time grows."""
    return Section(
        (
            INTRODUCTION,
            layers.norm_chart(records, COLUMNS),
            *(layers.precision_table(records, column) for column in COLUMNS),
            layers.growth_table(records, RESNET_CIFAR, DLA_CIFAR),
        )
    )


INTRODUCTION = (
    "Norms are measured by dense SVD or ARPACK in float64, on the networks of the tables with "
    "batch norm; batch norms themselves are not clipped. Times are seconds of the processor in "
    "training alone, without the measuring. The paper's figure comes without numbers that could be "
    "put beside ours: its text says that FastClip holds all layers close to 1, is faster than the "
    "relatively accurate alternatives, and slows down less from ResNet-18 to DLA."
)


def _close(records: Sequence[Record], columns: Sequence[Column]) -> Verdict:
    def margin(record: Record) -> float | None:
        found = layers.distances(record)
        return layers.CLOSE - max(found) if found else None

    return judge(
        [
            Question(
                f"{column}: 0.1 less the largest distance from 1",
                [*by_seed(select_column(records, column, "fast_clip"), margin).values()],
                unit="",
            )
            for column in columns
        ]
    )


def _precise(records: Sequence[Record], columns: Sequence[Column]) -> Verdict:
    def distance(record: Record) -> float | None:
        found = layers.distances(record)
        return summary(found).mean if found else None

    def by_method(column: Column, method: str) -> dict[int, float]:
        return by_seed(select_column(records, column, method), distance)

    return judge(
        [
            Question(
                f"{column}: distance from 1 by {rival} over that by fast_clip",
                log_ratios(by_method(column, rival), by_method(column, "fast_clip")),
                unit="factor",
            )
            for column in columns
            for rival in RIVALS
        ]
    )


def _fast(records: Sequence[Record], columns: Sequence[Column]) -> Verdict:
    return judge(
        [
            _times(records, (column, rival), (column, "fast_clip"))
            for column in columns
            for rival in ACCURATE
        ]
    )


def _smaller_images(records: Sequence[Record]) -> Verdict:
    return judge([_times(records, (RESNET_CIFAR, name), (RESNET_MNIST, name)) for name in METHODS])


def _growth(records: Sequence[Record]) -> Verdict:
    ours = _growth_of(records, "fast_clip")
    questions = []
    for rival in ACCURATE:
        theirs = _growth_of(records, rival)
        more = [math.log(theirs[key] / ours[key]) for key in theirs if key in ours]
        name = f"growth of {rival} over that of fast_clip"
        questions.append(Question(name, more, unit="factor"))
    return judge(questions)


def _growth_of(records: Sequence[Record], method: str) -> dict[tuple[int, int], float]:
    """Seconds on DLA over seconds on ResNet-18, by seed and epoch."""
    small = layers.times(records, RESNET_CIFAR, method)
    large = layers.times(records, DLA_CIFAR, method)
    return {key: seconds / small[key] for key, seconds in large.items() if small.get(key)}


def _times(
    records: Sequence[Record], slower: tuple[Column, str], faster: tuple[Column, str]
) -> Question:
    ratios = log_ratios(layers.times(records, *slower), layers.times(records, *faster))
    if slower[0] == faster[0]:
        words = f"{slower[0]}: {slower[1]} over {faster[1]}"
    else:
        words = f"{slower[1]}: {slower[0]} over {faster[0]}"
    return Question(words, ratios, unit="factor")


def _claims_of(title: str, where: str, columns: Sequence[Column]) -> list[Claim]:
    """What the paper says of every network; of each apart, since seeds differ in number."""
    return [
        Claim(
            f"{title}: with FastClip all layers have a norm very close to the target of 1.",
            f"{where} and its caption",
            "Rule for comparisons on 0.1 less the largest distance of any layer's norm from 1 at "
            "the end of training.",
            partial(_close, columns=columns),
        ),
        Claim(
            f"{title}: FastClip is the most precise of the clipping methods.",
            f"{where}; Section 3.2.1",
            "Rule for comparisons on the logarithm of the mean distance of a layer's norm from 1 "
            "with each rival, over that with FastClip.",
            partial(_precise, columns=columns),
        ),
        Claim(
            f"{title}: FastClip is faster than the relatively accurate alternatives, Senderovich "
            "et al. and Delattre et al.",
            f"{where}; Section 3.2.1",
            "Rule for comparisons on the logarithm of a rival's seconds an epoch over FastClip's; "
            "each epoch of each seed is one measurement.",
            partial(_fast, columns=columns),
        ),
    ]


CLAIMS = (
    *_claims_of("ResNet-18", "Figure 3a and b", (RESNET_CIFAR, RESNET_MNIST)),
    *_claims_of("DLA", "Figure 3c", (DLA_CIFAR,)),
    Claim(
        "An epoch on MNIST takes less time than one on CIFAR-10 with every method.",
        "Section 3.2.1",
        "Rule for comparisons on the logarithm of the seconds an epoch on CIFAR-10 over those on "
        "MNIST, for each method on ResNet-18; each epoch of each seed is one measurement.",
        _smaller_images,
    ),
    Claim(
        "From ResNet-18 to DLA the time of an epoch grows by a smaller factor for FastClip than "
        "for Senderovich et al. and Delattre et al.",
        "Figure 3c; Section 3.2.1",
        "Rule for comparisons on the logarithm of the growth for each of the two over that for "
        "FastClip; each epoch of each seed is one measurement.",
        _growth,
    ),
)

EXPERIMENT = Experiment(
    name="figure_layer_norms",
    title="Norms of all layers, and the time of an epoch",
    where="Figure 3",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    uses=("table_resnet", "table_dla"),
)
