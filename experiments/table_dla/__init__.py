"""Table 2: DLA on MNIST and CIFAR-10, tested and attacked; and that it needs its batch norms."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy import tables as accuracy_tables
from experiments.accuracy.claims import Column, as_run, beats, step, values
from experiments.accuracy.grid import CHANCE, METHODS, PAPERS, RIVALS, configs, method_name
from experiments.accuracy.published import METRICS
from experiments.experiment import (
    Claim,
    Config,
    Experiment,
    Record,
    Scale,
    Section,
    Table,
    Verdict,
)
from experiments.judging.verdicts import Question, judge, select
from experiments.report import conditions
from experiments.trained import run

COLUMNS = (Column("dla", "cifar10"), Column("dla", "mnist"))
COMPETITIVE = 0.02  # of accuracy, that a method may be below another
UNTRAINED, TRAINED = CHANCE + 0.05, CHANCE + 0.15


def grid(scale: Scale) -> list[Config]:
    """Every method on both data sets; without batch norm only trained, not attacked."""
    datasets = ("mnist",) if scale == "smoke" else ("mnist", "cifar10")
    methods = ("none", "fast_clip") if scale == "smoke" else METHODS
    return [
        *configs(scale, model="dla", datasets=datasets, batch_norm=True, methods=methods),
        *configs(
            scale,
            model="dla",
            datasets=datasets,
            batch_norm=False,
            methods=methods[:1] if scale == "smoke" else methods,
            attacked=False,
        ),
    ]


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out, the runs without batch norm, and a chart."""
    tables = [accuracy_tables.by_metric(records, column, METHODS) for column in COLUMNS]
    drawn = accuracy_tables.chart("table_dla", records, COLUMNS, METHODS)
    return Section((INTRODUCTION, *tables, drawn, WITHOUT, _untrained(records)))


INTRODUCTION = (
    "The same for DLA, which has more and other layers. Its sums are left as they are, so that "
    "norms of 1 do not make its modules 1-Lipschitz."
)
WITHOUT = (
    "Without batch norms the paper could not train DLA by any method, its accuracy being almost "
    "that of a random classifier; it prints no numbers. A run whose loss is no number any more "
    "counts as chance, and is marked."
)


def _untrained(records: Sequence[Record]) -> Table:
    rows = [
        [
            method_name(method),
            *(
                accuracy_tables.ours(records, column.without, method, "test_accuracy")
                for column in COLUMNS
            ),
        ]
        for method in METHODS
    ]
    runs = select(records, model="dla", batch_norm=False)
    header = ("method", *(column.data for column in as_run(runs, COLUMNS)))
    caption = f"DLA without batch norm: test accuracy in percent. {conditions(runs)}"
    return Table(header, rows, caption)


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

EXPERIMENT = Experiment(
    name="table_dla",
    title="DLA: accuracy and robustness",
    where="Table 2",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
)
