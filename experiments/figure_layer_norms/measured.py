"""What is read off the runs: distances from the target, and seconds a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.accuracy.claims import Column, select_column
from experiments.experiment import Record
from experiments.figure_layer_norms.run import TIMED, name_of
from experiments.judging.statistics import Summary, summary
from experiments.judging.verdicts import by_seed

CLOSE = 0.1  # from the target, to count as close to it


def norms(record: Record) -> dict[str, float]:
    """The true norms at the end of training, of dense layers and convolutions by name."""
    return _numbers(record.result.get("norms"))


def distances(record: Record) -> list[float]:
    """How far each layer's norm is from the target."""
    return _distances(record, norms(record))


def distances_by_epoch(record: Record) -> list[list[float]]:
    """The same after each epoch, where norms were taken."""
    found = [_distances(record, _numbers(e.get("norms"))) for e in record.result.get("epochs", [])]
    return [one for one in found if one]


def _distances(record: Record, found: Mapping[str, float]) -> list[float]:
    target = float(record.config.get("max_norm", 1.0))
    return [abs(value - target) for value in found.values()]


def _numbers(found: Mapping[str, float | None] | None) -> dict[str, float]:
    """Those of single layers: where batch norms were watched, these and compositions are there."""
    found = found or {}
    watched = {part for name in found if "+" in name for part in (name, name.split("+")[1])}
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and name not in watched
    }


def timed(records: Sequence[Record]) -> list[Record]:
    """The trainings of this grid that have a time, as if each were a run of its own."""
    return [
        found
        for record in records
        for training in record.config.get("trainings", ())
        for found in _of_training(record, training)
    ]


def _of_training(record: Record, training: Mapping[str, Any]) -> list[Record]:
    timing, name = record.run.get("timing") or {}, name_of(training)
    if name not in timing.get("seconds", {}):
        return []
    own = {key: {TIMED: timing[key][name]} for key in ("seconds", "core_shares")}
    shared = {key: record.config[key] for key in ("seed", "steps")}
    return [replace(record, config={**training, **shared}, run={"timing": {**timing, **own}})]


def seconds(found: Sequence[Record], column: Column, method: str) -> dict[int, float]:
    """Seconds a step by seed, of those that `timed` gives."""

    def of(record: Record) -> float:
        return float(record.run["timing"]["seconds"][TIMED])

    return by_seed(select_column(found, column, method), of)


def mean(found: Sequence[Record], column: Column, method: str) -> Summary:
    """The same over seeds."""
    return summary([*seconds(found, column, method).values()])
