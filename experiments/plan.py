"""What is left to run at a scale, how long that will take, and what claims wait for.

All of it is told by the runs that are there. Runs of one kind differ in their seed alone. What one
of them took is what the others will take; of kinds that have not been run yet, nothing is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.counting import work_of
from experiments.experiment import Claim, Config, Experiment, Record, Scale, Verdict
from experiments.judging.statistics import summary
from experiments.store import Store


@dataclass(frozen=True)
class Left:
    """What is left of an experiment.

    Attributes:
        name: Of the experiment.
        finished: How many runs are there.
        left: How many are not.
        seconds: What those of known kinds among them will take, one after another.
        unknown: How many are of kinds that have not been run yet.
    """

    name: str
    finished: int
    left: int
    seconds: float
    unknown: int


def left_of(experiment: Experiment, scale: Scale, store: Store) -> Left:
    """What is left of an experiment at a scale."""
    cells = experiment.cells(scale)
    ids = {cell.id for cell in cells}
    records = [one for one in store.records(experiment.name, scale) if one.id in ids]
    there = {record.id for record in records}
    missing = [cell for cell in cells if cell.id not in there]
    means = _means(records)
    kinds = [_kind(cell.config) for cell in missing]
    known = [means[kind] for kind in kinds if kind in means]
    return Left(experiment.name, len(records), len(missing), sum(known), len(missing) - len(known))


def _means(records: Iterable[Record]) -> dict[str, float]:
    """What a run of each kind took, on the average."""
    taken: dict[str, list[float]] = {}
    for record in records:
        timing = record.run.get("timing") or {}
        seconds = timing.get("total") or record.run.get("seconds")
        if seconds:
            taken.setdefault(_kind(record.config), []).append(float(seconds))
    return {kind: summary(found).mean for kind, found in taken.items()}


def _kind(config: Config) -> str:
    """All of a configuration but its seed, and the label that names it."""
    plain = {key: value for key, value in config.items() if key not in ("seed", "label")}
    return json.dumps(plain, sort_keys=True)


def rows(found: Sequence[Left]) -> list[tuple[str, ...]]:
    """For a table."""
    total = Left(
        "all",
        sum(one.finished for one in found),
        sum(one.left for one in found),
        sum(one.seconds for one in found),
        sum(one.unknown for one in found),
    )
    return [
        (
            one.name,
            str(one.finished),
            str(one.left),
            f"{one.seconds / 3600:.1f}",
            str(one.unknown or "–"),
        )
        for one in (*found, total)
    ]


def counted_rows(
    experiments: Iterable[Experiment], scale: Scale, teraflops: float
) -> list[tuple[str, ...]]:
    """Of trainings, the operations that they take and the hours of a GPU of that speed."""
    found: list[tuple[str, ...]] = []
    for one in experiments:
        cells = one.cells(scale)
        work = work_of(cells) if cells else None
        if work is not None:
            hours = f"{work.hours(1e12 * teraflops):.1f}"
            found.append((one.name, str(len(cells)), f"{work.flops / 1e15:,.0f}", hours))
    return found


def claim_row(claim: Claim, verdict: Verdict) -> tuple[str, ...]:
    """A claim, what its verdict hangs on, and how many seeds decide that if all stays as it is."""
    found = verdict.evidence
    if found is None:
        return claim.text, verdict.kind, "–", "–", "–", "–", "–"
    needed = "–" if math.isinf(found.needed) else f"{found.needed:.0f}"
    seeds = str(found.seeds)
    return claim.text, verdict.kind, found.name, found.effect, found.spread or "–", seeds, needed
