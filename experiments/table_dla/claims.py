"""What the paper says of DLA, and how it is judged."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.claims import beats, step, values
from experiments.accuracy.grid import CHANCE, PAPERS, RIVALS, UNTRAINED
from experiments.accuracy.published import METRICS
from experiments.experiment import Claim, Record, Verdict
from experiments.judging.verdicts import Question, judge
from experiments.table_dla.grid import COLUMNS

COMPETITIVE = 0.02  # of accuracy, that a method may be below another
TRAINED = CHANCE + 0.15


def _best_accuracy(records: Sequence[Record]) -> Verdict:
    return judge(beats(records, COLUMNS, ["test_accuracy"], "fast_clip", ["none", *RIVALS]))


def _competitive(records: Sequence[Record]) -> Verdict:
    metrics = [metric for metric in METRICS if metric != "test_accuracy"]
    return judge(beats(records, COLUMNS, metrics, "fast_clip", RIVALS, margin=COMPETITIVE))


def _more_robust_than_original(records: Sequence[Record]) -> Verdict:
    metrics = [metric for metric in METRICS if metric != "test_accuracy"]
    return judge(beats(records, COLUMNS, metrics, "fast_clip", ["none"]))


def _needs_batch_norm(records: Sequence[Record]) -> Verdict:
    image = step(records, "test_accuracy")
    questions = []
    for column in COLUMNS:
        trained = values(records, column, "none", "test_accuracy").values()
        above = [value - TRAINED for value in trained]
        questions.append(Question(f"{column}: none, above {TRAINED:.0%}", above, image))
        for method in PAPERS:
            found = values(records, column.without, method, "test_accuracy").values()
            below = [UNTRAINED - value for value in found]
            name = f"{column.without}: {method}, below {UNTRAINED:.0%}"
            questions.append(Question(name, below, image))
    return judge(questions)


CLAIMS = (
    Claim(
        "On DLA FastClip gives the best test accuracy, above the original model and above all "
        "other methods, on both data sets.",
        "Table 2; Section 3.2.2",
        "Rule for comparisons on FastClip's test accuracy less the original model's and that of "
        "each rival, on both data sets.",
        _best_accuracy,
    ),
    Claim(
        "On DLA FastClip is better than the others under attack, or competitive.",
        "Table 2; Section 3.2.2",
        "Rule for comparisons on FastClip's accuracy under PGD and under CW plus 2 points less "
        "that of each rival, on both data sets: 2 points below still count as competitive.",
        _competitive,
    ),
    Claim(
        "On DLA FastClip is more robust to PGD and CW than the original model.",
        "Table 2 and its caption",
        "Rule for comparisons on FastClip's accuracy under PGD and under CW less the original "
        "model's, on both data sets.",
        _more_robust_than_original,
    ),
    Claim(
        "Without batch norm DLA does not train at all, by any method.",
        "Section 3.2.2",
        "Rule for comparisons on 15 % less the test accuracy without batch norm of the original "
        "model and of each of the paper's five methods; and, so that too short a training does not "
        "count, on the original model's accuracy with batch norm less 25 %.",
        _needs_batch_norm,
    ),
)
