"""How the claims about FastClip-concat are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from experiments.accuracy.grid import method_name
from experiments.experiment import Claim, Record, Verdict
from experiments.judging import statistics, verdicts
from experiments.judging.settling import CORRECT, off, too_early, unless
from experiments.judging.settling import RULE as SETTLING
from experiments.trained.resnet import CLAMPED, CONCAT, PLAIN, accuracy, compositions, largest, of

SAME = 0.02  # two training accuracies that differ by no more follow the same path


def _excess(record: Record, epoch: int) -> float:
    """How far both together are above the target: the mean logarithm over the layers."""
    found = record.result["epochs"][epoch]["norms"]
    above = [max(math.log(found[name]), 0.0) for name in compositions(record)]
    return sum(above) / len(above) if above else math.nan


def _by_seed(
    records: Sequence[Record], method: str, measure: Callable[[Record], float]
) -> dict[int, float]:
    return verdicts.by_seed(of(records, method), measure)


def _clips_convolutions(records: Sequence[Record]) -> Verdict:
    found = _by_seed(records, CONCAT, lambda r: math.log(CORRECT / off(largest(r, 0))))
    name = f"{CORRECT:g} over the factor by which the largest norm of a convolution is off"
    verdict = verdicts.judge([verdicts.Question(name, list(found.values()), unit="factor")])
    paths = [
        [off(largest(record, 0, epoch)) for epoch in range(len(record.result["epochs"]))]
        for record in of(records, CONCAT)
    ]
    early = too_early(method_name(CONCAT), of(records, CONCAT), paths)
    return unless(verdict, "contradicted", early)


def _approaches(records: Sequence[Record]) -> Verdict:
    fall = _by_seed(records, CONCAT, lambda r: _excess(r, 0) - _excess(r, -1))
    plain = _by_seed(records, PLAIN, lambda r: _excess(r, -1))
    concat = _by_seed(records, CONCAT, lambda r: _excess(r, -1))
    return verdicts.judge(
        [
            verdicts.Question(
                "excess after the first epoch over that after the last",
                list(fall.values()),
                unit="factor",
            ),
            verdicts.Question(
                "excess of FastClip over that of FastClip-concat",
                statistics.differences(plain, concat),
                unit="factor",
            ),
        ]
    )


def _batch_norms_rise(records: Sequence[Record]) -> Verdict:
    found = _by_seed(records, CONCAT, lambda r: math.log(largest(r, 1)))
    name = "largest norm of a batch norm over the target"
    return verdicts.judge([verdicts.Question(name, list(found.values()), unit="factor")])


def _image(records: Sequence[Record]) -> float:
    """One training image, as a share of all."""
    return max((1 / (r.config["train_images"] or 50_000) for r in records), default=0.0)


def _clamp_hinders(records: Sequence[Record]) -> Verdict:
    clamped = _by_seed(records, CLAMPED, accuracy)
    return verdicts.judge(
        [
            verdicts.against(
                f"{method_name(method)} against {method_name(CLAMPED)}",
                _by_seed(records, method, accuracy),
                clamped,
                step=_image(records),
            )
            for method in (PLAIN, CONCAT)
        ]
    )


def _same_path(records: Sequence[Record]) -> Verdict:
    paths = {
        method: {
            int(record.config["seed"]): [e["train_accuracy"] for e in record.result["epochs"]]
            for record in of(records, method)
        }
        for method in (PLAIN, CONCAT)
    }
    margins = [
        SAME - sum(abs(x - y) for x, y in zip(path, paths[PLAIN][seed], strict=True)) / len(path)
        for seed, path in paths[CONCAT].items()
        if seed in paths[PLAIN]
    ]
    name = f"{100 * SAME:g} points less the mean distance of the two paths"
    return verdicts.judge([verdicts.Question(name, margins, _image(records))])


_WHERE = "Section 3.3 and Figure (a) on FastClip-concat"
CLAIMS = (
    Claim(
        "FastClip-concat clips the convolutions to 1.",
        _WHERE,
        f"Seed by seed, the logarithm of {CORRECT:g} over the factor by which the largest true "
        "norm of a convolution is off the target after the last epoch, above or below. By the rule "
        f"for comparisons. {SETTLING}",
        _clips_convolutions,
    ),
    Claim(
        "The norms of convolution and batch norm together approach the target.",
        _WHERE,
        "With the excess, the mean over the layers of the logarithm of the true norm of both "
        "together where it is above 1, seed by seed: that of FastClip-concat after the first epoch "
        "less that after the last; and after the last epoch that of FastClip less that of "
        "FastClip-concat. By the rule for comparisons.",
        _approaches,
    ),
    Claim(
        "The norms of the batch norms alone may be above the target.",
        _WHERE,
        "Seed by seed, the logarithm of the largest true norm of a batch norm after the last "
        "epoch. By the rule for comparisons.",
        _batch_norms_rise,
    ),
    Claim(
        "Clipping the batch norms directly hinders training.",
        "Section 3.3 and Figure (b) on FastClip-concat",
        "Training accuracy in the last epoch, seed by seed: of FastClip, and of FastClip-concat, "
        "less that of FastClip with batch norms clipped. By the rule for comparisons.",
        _clamp_hinders,
    ),
    Claim(
        "FastClip-concat follows the same path as FastClip in training accuracy.",
        "Section 3.3 and Figure (b) on FastClip-concat",
        f"Seed by seed, {100 * SAME:g} points less the mean distance, over the epochs, of the two "
        f"training accuracies. By the rule for comparisons.",
        _same_path,
    ),
)
