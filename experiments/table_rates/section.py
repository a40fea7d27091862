"""What the report shows: the accuracies that rates were chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.accuracy.rates import chosen_rate
from experiments.experiment import Record, Section, Table
from experiments.report import conditions
from experiments.table_rates.choose import by_search

INTRODUCTION = (
    "Each method is trained with three learning rates for one epoch, with the whole schedule, on "
    "all training images but 5,000. The highest rate whose accuracy on these is within a standard "
    "error of the best is the one that its trainings have at the scale desk. Test images were not "
    "looked at."
)


def section(records: Sequence[Record]) -> Section:
    """A row for each search."""
    if not records:
        return Section([INTRODUCTION, "No runs yet."])
    rows = [[key, _listed(tried), _rate(key, tried)] for key, tried in by_search(records).items()]
    caption = f"Accuracy in percent on the images held out, by rate. {conditions(records)}"
    return Section([INTRODUCTION, Table(["searched for", "tried", "chosen"], rows, caption)])


def _listed(tried: Mapping[float, float]) -> str:
    return ", ".join(
        f"{rate:g}: {'diverged' if found < 0 else f'{100 * found:.1f}'}"
        for rate, found in tried.items()
    )


def _rate(key: str, tried: Mapping[float, float]) -> str:
    rate = chosen_rate(key)
    if rate is None:
        return "–"
    return f"{rate:g}" + (" (at an end)" if rate in (min(tried), max(tried)) else "")
