"""How the claims about the norms of all layers, and about times, are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from experiments.accuracy.claims import Column, select_column
from experiments.accuracy.grid import PAPERS, RIVALS, method_name
from experiments.experiment import Claim, Record, Verdict
from experiments.figure_layer_norms.grid import DLA_CIFAR, RESNET_CIFAR, RESNET_MNIST
from experiments.figure_layer_norms.measured import (
    CLOSE,
    distances,
    distances_by_epoch,
    seconds,
    timed,
)
from experiments.judging.settling import RULE as SETTLING
from experiments.judging.settling import too_early, unless
from experiments.judging.statistics import log_ratios, summary
from experiments.judging.verdicts import Question, by_seed, judge
from experiments.measuring.stopwatch import UNDISTURBED, undisturbed

ACCURATE = ("senderovich", "delattre")  # what the paper calls relatively accurate
FOLLOWED = 0.05  # of the true norm, by which one that is followed may be off
AN_EPOCH = {"cifar10": 50_000, "mnist": 60_000}  # images


# --- Norms --------------------------------------------------------------------------------


def _mean(found: Sequence[float]) -> float:
    return summary(found).mean


def _too_early(
    records: Sequence[Record],
    columns: Sequence[Column],
    method: str,
    measure: Callable[[Sequence[float]], float],
) -> str:
    runs = [run for column in columns for run in select_column(records, column, method)]
    paths = [[1 + measure(found) for found in distances_by_epoch(run)] for run in runs]
    return too_early(method_name(method), runs, paths)


def _close(records: Sequence[Record], columns: Sequence[Column]) -> Verdict:
    def margin(record: Record) -> float | None:
        found = distances(record)
        return CLOSE - max(found) if found else None

    verdict = judge(
        [
            Question(
                f"{column}: 0.1 less the largest distance from 1",
                [*by_seed(select_column(records, column, "fast_clip"), margin).values()],
                unit="",
            )
            for column in columns
        ]
    )
    return unless(verdict, "contradicted", _too_early(records, columns, "fast_clip", max))


def _precise(records: Sequence[Record], columns: Sequence[Column]) -> Verdict:
    def distance(record: Record) -> float | None:
        found = distances(record)
        return _mean(found) if found else None

    def by_method(column: Column, method: str) -> dict[int, float]:
        return by_seed(select_column(records, column, method), distance)

    verdict = judge(
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
    rivals = "".join(_too_early(records, columns, rival, _mean) for rival in RIVALS)
    verdict = unless(verdict, "reproduced", rivals)
    return unless(verdict, "contradicted", _too_early(records, columns, "fast_clip", _mean))


def _lag(record: Record) -> float | None:
    """How far the followed norms are from the true ones after the last epoch, on the average."""
    last = (record.result.get("epochs") or [{}])[-1]
    true, tracked = last.get("norms") or {}, last.get("tracked") or {}
    both = [(tracked[name], true[name]) for name in tracked if true.get(name)]
    return _mean([abs(found / norm - 1) for found, norm in both]) if both else None


def _follows(records: Sequence[Record]) -> Verdict:
    questions = []
    for column in (RESNET_CIFAR, RESNET_MNIST):
        lags = by_seed(select_column(records, column, "fast_clip"), _lag)
        margins = [FOLLOWED - lag for lag in lags.values()]
        name = f"{column}: {FOLLOWED:g} less the mean distance of followed from true norms"
        questions.append(Question(name, margins, unit=""))
    return judge(questions)


# --- Times --------------------------------------------------------------------------------


def _times(records: Sequence[Record], column: Column, method: str) -> dict[int, float]:
    """Seconds a step by seed, of runs that were not disturbed."""
    return seconds(undisturbed(timed(records)), column, method)


def _fast(records: Sequence[Record], columns: Sequence[Column]) -> Verdict:
    return judge(
        [
            Question(
                f"{column}: {rival} over fast_clip",
                log_ratios(_times(records, column, rival), _times(records, column, "fast_clip")),
                unit="factor",
            )
            for column in columns
            for rival in ACCURATE
        ]
    )


def _smaller_images(records: Sequence[Record]) -> Verdict:
    questions = []
    for method in PAPERS:
        epochs = [
            {seed: step * AN_EPOCH[column.dataset] for seed, step in found.items()}
            for column in (RESNET_CIFAR, RESNET_MNIST)
            for found in [_times(records, column, method)]
        ]
        name = f"{method}: {RESNET_CIFAR} over {RESNET_MNIST}"
        questions.append(Question(name, log_ratios(*epochs), unit="factor"))
    return judge(questions)


def _growth(records: Sequence[Record]) -> Verdict:
    def of(method: str) -> dict[int, float]:
        small, large = (_times(records, one, method) for one in (RESNET_CIFAR, DLA_CIFAR))
        return {seed: large[seed] / small[seed] for seed in large if seed in small}

    return judge(
        [
            Question(
                f"growth of {rival} over that of fast_clip",
                log_ratios(of(rival), of("fast_clip")),
                unit="factor",
            )
            for rival in ACCURATE
        ]
    )


_TIMES = (
    "one number a seed, what a step takes on the average by the clock on the wall, all networks "
    f"and methods in turns, at the width of the scale. {UNDISTURBED}"
)


def _claims_of(title: str, where: str, columns: Sequence[Column]) -> list[Claim]:
    """What the paper says of every network; of each apart, since seeds differ in number."""
    return [
        Claim(
            f"{title}: with FastClip all layers have a norm very close to the target of 1.",
            f"{where} and its caption",
            "Rule for comparisons on 0.1 less the largest distance of any layer's norm from 1 at "
            f"the end of training. {SETTLING}",
            partial(_close, columns=columns),
        ),
        Claim(
            f"{title}: FastClip is the most precise of the clipping methods.",
            f"{where}; Section 3.2.1",
            "Rule for comparisons on the logarithm of the mean distance of a layer's norm from 1 "
            f"with each rival, over that with FastClip. {SETTLING}",
            partial(_precise, columns=columns),
        ),
        Claim(
            f"{title}: FastClip is faster than the relatively accurate alternatives, Senderovich "
            "et al. and Delattre et al.",
            f"{where}; Section 3.2.1",
            "Rule for comparisons on the logarithm of a rival's seconds a step over FastClip's: "
            f"{_TIMES}",
            partial(_fast, columns=columns),
        ),
    ]


CLAIMS = (
    *_claims_of("ResNet-18", "Figure 3a and b", (RESNET_CIFAR, RESNET_MNIST)),
    *_claims_of("DLA", "Figure 3c", (DLA_CIFAR,)),
    Claim(
        "An epoch on MNIST takes less time than one on CIFAR-10 with every method.",
        "Section 3.2.1",
        "Rule for comparisons on the logarithm of the seconds of an epoch of 50,000 images of "
        "CIFAR-10 over those of 60,000 of MNIST, for the original ResNet-18 and each of the "
        f"paper's five methods, from the seconds a step: {_TIMES}",
        _smaller_images,
    ),
    Claim(
        "From ResNet-18 to DLA the time of an epoch grows by a smaller factor for FastClip than "
        "for Senderovich et al. and Delattre et al.",
        "Figure 3c; Section 3.2.1",
        "Rule for comparisons on the logarithm of the growth for each of the two over that for "
        f"FastClip, from the seconds a step: {_TIMES}",
        _growth,
    ),
    Claim(
        "One iteration of PowerQR a step is enough to follow the norms while a network is trained.",
        "Section 2.1",
        f"Rule for comparisons on {FOLLOWED:g} less the mean, over the layers of ResNet-18 with "
        "FastClip, of the relative distance between the norm that it follows and the true one, "
        "after the last epoch, on both data sets.",
        _follows,
    ),
)
