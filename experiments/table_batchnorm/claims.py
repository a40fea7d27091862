"""What the paper says of clipping batch norms, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from experiments.accuracy.claims import Column, beats, between
from experiments.accuracy.grid import CLAMPED, CONCAT, MODELS, RIVALS
from experiments.experiment import Claim, Record, Verdict
from experiments.judging.verdicts import Question, judge
from experiments.table_batchnorm.grid import COLUMNS

TEST, PGD = "test_accuracy", "pgd_accuracy"
ATTACKS = (PGD, "cw_accuracy")
CLOSE, SIGNIFICANT = 0.02, 0.05  # of accuracy


def _best(records: Sequence[Record], column: Column, metric: str) -> Verdict:
    rivals = [name for name in CLAMPED if name != "fast_clip+bn"]
    return judge(beats(records, [column.learning(records)], [metric], "fast_clip+bn", rivals))


def _hinders(records: Sequence[Record], column: Column) -> Verdict:
    return judge(_freed(records, column, TEST))


def _little_robustness(records: Sequence[Record], column: Column) -> Verdict:
    return judge(_freed(records, column, PGD, margin=SIGNIFICANT))


def _freed(
    records: Sequence[Record], column: Column, metric: str, margin: float = 0.0
) -> list[Question]:
    """Asks of each method whether it is better with batch norms left free."""
    clamped = column.learning(records)
    return [
        between(records, metric, (column, plain), (clamped, f"{plain}+bn"), margin=margin)
        for plain in (*RIVALS, "fast_clip")
    ]


def _clamped_against_original(records: Sequence[Record], column: Column) -> Verdict:
    clamped = column.learning(records)
    return judge([between(records, PGD, (clamped, "fast_clip+bn"), (column, "none"))])


def _none_beats_removal(records: Sequence[Record]) -> Verdict:
    column = COLUMNS[0]
    removed, clamped = column.without.learning(records), column.learning(records)
    return judge(
        [
            between(records, metric, (removed, "fast_clip"), (clamped, name))
            for metric in (TEST, *ATTACKS)
            for name in CLAMPED
        ]
    )


def _concat_accuracy(records: Sequence[Record], column: Column) -> Verdict:
    clamped = column.learning(records)
    return judge([between(records, TEST, (column, CONCAT), (clamped, name)) for name in CLAMPED])


def _concat_robustness(records: Sequence[Record], column: Column) -> Verdict:
    return judge(beats(records, [column], ATTACKS, CONCAT, ["none", "fast_clip"]))


def _concat_is_close(records: Sequence[Record], column: Column) -> Verdict:
    return judge(beats(records, [column], [TEST], CONCAT, ["fast_clip"], margin=CLOSE))


def _concat_beats_removal(records: Sequence[Record]) -> Verdict:
    column = COLUMNS[0]
    removed = (column.without.learning(records), "fast_clip")
    return judge([between(records, TEST, (column, CONCAT), removed)])


# What the paper says of both models: the claim, its place, what is compared, and the judge.
SAID: tuple[tuple[str, str, str, Callable[..., Verdict]], ...] = (
    (
        "with batch norms clipped on their own, FastClip has the best test accuracy.",
        "Table 3, {model}",
        "the test accuracy of FastClip less that of each rival, all with batch norms clipped.",
        partial(_best, metric=TEST),
    ),
    (
        "with batch norms clipped on their own, FastClip is the best under PGD.",
        "Table 3, {model}",
        "the accuracy under PGD of FastClip less that of each rival, all with batch norms clipped.",
        partial(_best, metric=PGD),
    ),
    (
        "clipping batch norms on their own lowers the test accuracy of every method.",
        "Table 3, {model}, against {others}",
        "the test accuracy with batch norms free less that with batch norms clipped, for each "
        "of the paper's five methods.",
        _hinders,
    ),
    (
        "clipping batch norms on their own brings no significant gain of robustness.",
        "Table 3, {model}, against {others}",
        "5 points less the gain under PGD by clipping batch norms, for each of the paper's "
        "five methods. Under CW the paper's own numbers do gain.",
        _little_robustness,
    ),
    (
        "FastClip with batch norms clipped is more robust than the original model.",
        "Table 3, {model}, against {others}",
        "its accuracy under PGD less the original model's. CW weighs a distance against scores, "
        "and by the two recipes these have different scales.",
        _clamped_against_original,
    ),
    (
        "FastClip-concat has a better test accuracy than all with batch norms clipped.",
        "Table 3, {model}, and the caption",
        "FastClip-concat's test accuracy less that of each of the five methods with batch "
        "norms clipped.",
        _concat_accuracy,
    ),
    (
        "FastClip-concat is more robust than the original model and than FastClip.",
        "Table 3, {model}, against {others}",
        "its accuracy under PGD and under CW less those of the original model and of FastClip.",
        _concat_robustness,
    ),
    (
        "FastClip-concat's test accuracy is close to FastClip's.",
        "Table 3, {model}, against {others}",
        "its test accuracy plus 2 points less FastClip's.",
        _concat_is_close,
    ),
)


def _claims_of(column: Column, others: str) -> list[Claim]:
    """The claims on a model; of each apart, since their seeds differ in number."""
    model = MODELS[column.model]
    return [
        Claim(
            f"{model}: {text}",
            f"{where.format(model=model, others=others)}; Section 3.3",
            f"Rule for comparisons on {rule}",
            partial(judged, column=column),
        )
        for text, where, rule, judged in SAID
    ]


CLAIMS = (
    *_claims_of(COLUMNS[0], "Table 1"),
    Claim(
        "ResNet-18: no method with batch norms clipped reaches the accuracy or robustness of "
        "FastClip with batch norms removed.",
        "Table 3 against Table 1; Section 3.3",
        "Rule for comparisons on each of the three accuracies of FastClip without batch norm less "
        "that of each of the five methods with batch norms clipped.",
        _none_beats_removal,
    ),
    Claim(
        "ResNet-18: FastClip-concat has a better test accuracy than FastClip with batch norms "
        "removed.",
        "Table 3 against Table 1; Section 3.3",
        "Rule for comparisons on its test accuracy less that of FastClip without batch norm.",
        _concat_beats_removal,
    ),
    *_claims_of(COLUMNS[1], "Table 2"),
)
