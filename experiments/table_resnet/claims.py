"""What the paper says of ResNet-18, and how it is judged."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.claims import Column, averaged, beats, between
from experiments.accuracy.grid import RIVALS
from experiments.experiment import Claim, Record, Verdict
from experiments.judging.verdicts import judge
from experiments.table_resnet.grid import COLUMNS, NO_BN, WITH_BN

CLIPPED = (*RIVALS, "fast_clip")
TEST, ATTACKS = ("test_accuracy",), ("pgd_accuracy", "cw_accuracy")


def _columns(records: Sequence[Record], columns: Sequence[Column] = COLUMNS) -> list[Column]:
    return [column if column.batch_norm else column.learning(records) for column in columns]


def _best_accuracy(records: Sequence[Record]) -> Verdict:
    return judge(beats(records, _columns(records), TEST, "fast_clip", RIVALS))


def _better_than_original(records: Sequence[Record]) -> Verdict:
    return judge(beats(records, WITH_BN, TEST, "fast_clip", ["none"]))


def _more_robust_than_original(records: Sequence[Record]) -> Verdict:
    return judge(beats(records, WITH_BN, ATTACKS, "fast_clip", ["none"]))


def _best_under_pgd(records: Sequence[Record]) -> Verdict:
    return judge(beats(records, _columns(records), ["pgd_accuracy"], "fast_clip", RIVALS))


def _best_under_cw(records: Sequence[Record]) -> Verdict:
    columns = _columns(records, [column for column in COLUMNS if column != NO_BN[0]])
    return judge(beats(records, columns, ["cw_accuracy"], "fast_clip", RIVALS))


def _robust_without_bn(records: Sequence[Record]) -> Verdict:
    return judge(
        [
            between(
                records,
                "pgd_accuracy",
                (column.without.learning(records), "fast_clip"),
                (column, "fast_clip"),
            )
            for column in WITH_BN
        ]
    )


def _worse_without_bn(records: Sequence[Record]) -> Verdict:
    return judge(
        [
            averaged(records, "test_accuracy", CLIPPED, column, column.without.learning(records))
            for column in WITH_BN
        ]
    )


CLAIMS = (
    Claim(
        "FastClip gives the best test accuracy of all clipping methods, with and without batch "
        "norm, on both data sets.",
        "Table 1; Section 3.2.2",
        "Rule for comparisons on FastClip's test accuracy less that of each of the four rivals, "
        "in each of the four columns.",
        _best_accuracy,
    ),
    Claim(
        "Clipping with FastClip improves the test accuracy of the original model.",
        "Table 1 and its caption; Section 3.2.2",
        "Rule for comparisons on FastClip's test accuracy less the original model's, with batch "
        "norm, on both data sets.",
        _better_than_original,
    ),
    Claim(
        "Clipping with FastClip makes the model more robust to PGD and CW than the original.",
        "Table 1 and its caption; Section 3.2.2",
        "Rule for comparisons on FastClip's accuracy under PGD and under CW less the original "
        "model's, with batch norm, on both data sets.",
        _more_robust_than_original,
    ),
    Claim(
        "Under PGD FastClip is the best of all clipping methods in every column.",
        "Table 1, numbers in bold",
        "Rule for comparisons on FastClip's accuracy under PGD less that of each rival, in each "
        "of the four columns.",
        _best_under_pgd,
    ),
    Claim(
        "Under CW FastClip is the best of all clipping methods in every column but MNIST without "
        "batch norm, where the paper has Delattre et al. ahead.",
        "Table 1, numbers in bold",
        "Rule for comparisons on FastClip's accuracy under CW less that of each rival, in the "
        "three columns named.",
        _best_under_cw,
    ),
    Claim(
        "Removing batch norm makes models clipped by FastClip much more robust; of the other "
        "methods the paper's own numbers do not all say so.",
        "Table 1; Section 3.2.2",
        "Rule for comparisons on FastClip's accuracy without batch norm less that with it, under "
        "PGD, on both data sets. CW weighs a distance against scores, and by the two recipes these "
        "have different scales.",
        _robust_without_bn,
    ),
    Claim(
        "Without batch norm, clipped models have a worse test accuracy.",
        "Table 1; Section 3.2.2",
        "Rule for comparisons on the test accuracy with batch norm less that without, averaged "
        "over the five clipping methods of the paper, on both data sets.",
        _worse_without_bn,
    ),
)
