"""How processes that share the work on a model's layers agree: who does what, what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import nn

from spectralclip._models import FoundLayer
from spectralclip._training.distributed.assignment import divided, estimated_cost
from spectralclip._training.distributed.process_group import ProcessGroup, digest

_HEAD = 4  # columns of a report's row that are not about layers or weights

SAME_WEIGHTS = (
    "Every rank has to start from the same weights and to make the same steps: wrap the model in "
    "DistributedDataParallel, or average the gradients over the ranks before optimizer.step()."
)
_SAME_CALLS = (
    "Every rank has to call optimizer.step(), state_dict() and finalize() equally often and in the "
    "same order."
)


class DisagreementError(RuntimeError):
    """Processes that train one model together do not do, or do not have, the same."""


@final
@dataclass
class Report:
    """What one process tells the others, or all of them together."""

    label: str  # what it is doing
    results: dict[str, Any] = field(default_factory=dict)  # what came out, by layer
    facts: Sequence[int] = ()  # one for each layer, to be the same everywhere, or none at all
    about: tuple[str, str] = ("weights", SAME_WEIGHTS)  # the facts, and the remedy if they differ
    changed: set[int] = field(default_factory=set)  # the numbers of changed parameters
    # The numbers of those whose momentum has been changed or is to be, each with a positive number
    # that the others need to know.
    projected: dict[int, int] = field(default_factory=dict)
    error: Exception | None = None

    def outcome(self) -> dict[str, Any]:
        """The results, unless something went wrong."""
        if self.error is not None:
            raise self.error
        return self.results


@final
class Assignment:
    """The layers of a model, in the same order everywhere, and for each the process at work on it.

    Parameters are numbered by their place among `parameters`, where each of them is once.
    """

    def __init__(self, group: ProcessGroup, layers: Mapping[str, FoundLayer]) -> None:
        costs = {name: estimated_cost(layer) for name, layer in layers.items()}
        by_name = divided(layers, costs, group.size)
        held = {name: layer.parameters() for name, layer in layers.items()}
        unique = {id(p): (p, by_name[name]) for name, own in held.items() for p in own}
        number = {key: n for n, key in enumerate(unique)}
        self.group, self.layers = group, dict(layers)
        self.parameters: list[nn.Parameter] = [p for p, _ in unique.values()]
        self.owners = [owner for _, owner in unique.values()]  # by a parameter's number
        self.numbers = {name: [number[id(p)] for p in own] for name, own in held.items()}
        self.mine = {name: layers[name] for name in layers if by_name[name] == group.rank}
        self._exchanges = 0

    def attempt(self, work: Callable[[], dict[str, Any]], label: str) -> Report:
        """Do the work, and report a failure rather than raise: the others would wait forever."""
        try:
            return Report(label, work())
        except Exception as error:
            return Report(label, error=error)

    def reach_consensus(self, report: Report) -> Report:
        """Exchange reports in one small message; what they say together is the same everywhere.

        Raises:
            DisagreementError: Processes are at different things, or state different facts.
        """
        self._exchanges += 1
        table = self._table(report)
        self._require_same_place(table, report)
        self._require_same_facts(table, report)
        together, weights = Report(report.label), len(self.parameters)
        for number, owner in enumerate(self.owners):
            row = table[owner][_HEAD + len(self.layers) :]
            if row[number]:
                together.changed.add(number)
            if row[weights + number]:
                together.projected[number] = row[weights + number]
        failed = [rank for rank, row in enumerate(table) if row[2]]
        if failed:
            together.error = self._failure(failed[0], report)
        elif any(row[3] for row in table):
            together.results = self.merged(report.results)
        return together

    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        """What each process knows of its layers, put together in the order of the layers."""
        known: dict[str, Any] = {}
        for part in self.group.objects(by_layer):
            known |= part
        return {name: known[name] for name in (*self.layers, *known) if name in known}

    def _table(self, report: Report) -> list[list[int]]:
        try:
            return self.group.table(self._row(report))
        except RuntimeError as error:
            raise DisagreementError(
                f"At {report.label}, rank {self.group.rank} did not hear from all others: {error} "
                f"{_SAME_CALLS}"
            ) from error

    def _row(self, report: Report) -> list[int]:
        """A report as numbers, as many in every exchange."""
        every = range(len(self.parameters))
        return [
            digest(report.label),
            self._exchanges,
            int(report.error is not None),
            int(bool(report.results)),
            *(report.facts or [0] * len(self.layers)),
            *(int(n in report.changed) for n in every),
            *(report.projected.get(n, 0) for n in every),
        ]

    def _require_same_place(self, table: list[list[int]], report: Report) -> None:
        if all(row[:2] == table[0][:2] for row in table):
            return
        places = self.group.objects(f"{report.label} (exchange {self._exchanges})")
        other = next(rank for rank, place in enumerate(places) if place != places[0])
        raise DisagreementError(
            f"The processes are at different things: rank 0 at {places[0]}, rank {other} at "
            f"{places[other]}. {_SAME_CALLS}"
        )

    def _require_same_facts(self, table: list[list[int]], report: Report) -> None:
        about, remedy = report.about
        for column, name in enumerate(self.layers, start=_HEAD):
            for rank, row in enumerate(table):
                if row[column] != table[0][column]:
                    raise DisagreementError(
                        f"At {report.label} the {about} of layer {name!r} on rank {rank} are not "
                        f"those on rank 0. {remedy}"
                    )

    def _failure(self, rank: int, report: Report) -> Exception:
        said = self.group.objects(None if report.error is None else str(report.error))
        if report.error is not None:
            return report.error
        return RuntimeError(f"Rank {rank} failed at {report.label}: {said[rank]}")


def agree(group: ProcessGroup, claims: Mapping[str, object]) -> None:
    """Raise, everywhere, unless all processes claim the same, by what the claims are about."""
    texts = {about: repr(settings(claim)) for about, claim in claims.items()}
    rows = group.table([digest(repr(texts))])
    if all(row == rows[0] for row in rows):
        return
    said = group.objects(texts)
    for rank, other in enumerate(said):
        for about in (*said[0], *other):
            first, second = said[0].get(about, "none"), other.get(about, "none")
            if first != second:
                raise DisagreementError(
                    f"The processes do not agree on the {about}: rank 0 has {first}, rank {rank} "
                    f"has {second}. Every rank has to attach the same method to the same model."
                )


def settings(value: object) -> object:
    """Numbers, strings and collections of them, in a form that is the same in every process."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): settings(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (set, frozenset)):
        return sorted(repr(settings(part)) for part in value)
    if isinstance(value, Sequence):
        return [settings(part) for part in value]
    return type(value).__qualname__
