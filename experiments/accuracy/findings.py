"""What a reader may quote of accuracies: test and PGD, a bar each, for every line of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.accuracy.claims import Column, select_column, values
from experiments.accuracy.grid import method_name, short_name
from experiments.experiment import Chart, Finding, Record
from experiments.judging.statistics import summary
from experiments.report import conditions
from experiments.report.bar_charts import bars

SHOWN = {"test set": "test_accuracy", "under PGD": "pgd_accuracy"}


def accuracies(
    name: str,
    records: Sequence[Record],
    column: Column,
    methods: Mapping[str, Column],
    quoted: Sequence[str],
) -> list[Finding]:
    """The finding on a network, if all methods that are quoted have been run.

    Args:
        name: Of its chart.
        records: Of one scale.
        column: That the sentence names.
        methods: The lines that are drawn, of which some may be missing, each with its column.
        quoted: Those that the sentence is about.
    """
    found: dict[str, dict[str, float]] = {}
    for method, own_column in methods.items():
        seeds = {kind: values(records, own_column, method, key) for kind, key in SHOWN.items()}
        if all(seeds.values()):
            means = {kind: 100 * summary([*own.values()]).mean for kind, own in seeds.items()}
            found[method] = means
    if not all(method in found for method in quoted):
        return []
    parts = [
        f"{found[method]['test set']:.1f} % ({found[method]['under PGD']:.1f} %) with "
        f"{short_name(method)}"
        for method in quoted
    ]
    text = f"**{column}**: accuracy on the test set (under PGD) is {_joined(parts)}."
    drawn = {method_name(method): means for method, means in found.items()}
    shown = [
        record for method in found for record in select_column(records, methods[method], method)
    ]
    chart = Chart(
        name,
        bars(drawn, "accuracy in percent"),
        f"Means over seeds. {conditions(shown)}",
        f"Bars of accuracies on the test set and under PGD by method, for {column}.",
    )
    return [Finding(text, chart)]


def _joined(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
