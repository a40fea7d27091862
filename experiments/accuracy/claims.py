"""Questions about accuracies, for the claims of the three tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.accuracy.grid import (
    BOUNDED,
    CHANCE,
    CLAMPED,
    CONCAT,
    DATASETS,
    MODELS,
    PAPER,
    PAPERS,
    STAND_INS,
    UNTRAINED,
    row_of,
)
from experiments.accuracy.published import METRICS
from experiments.experiment import Record
from experiments.judging.statistics import Spread, spread_of_differences, summary
from experiments.judging.verdicts import Question, against, by_seed, select

IMAGES = 10_000  # of the test set of either data set


@dataclass(frozen=True)
class Column:
    """Some runs that differ in method and seed alone.

    Attributes:
        model: "resnet18" or "dla".
        dataset: "mnist" or "cifar10"; the data that stand in for it count as well.
        batch_norm: Whether the model has batch norms.
        recipe: By which it is trained.
        stand_in: Whether other data stand in for the data set, to be told where it is named.
    """

    model: str
    dataset: str
    batch_norm: bool = True
    recipe: str = PAPER
    stand_in: bool = False

    def __str__(self) -> str:
        return f"{MODELS[self.model]}, {self.title}"

    @property
    def title(self) -> str:
        """Without the model."""
        by = ", recipe for bounds" if self.recipe == BOUNDED else ""
        return f"{self.data}, {'with' if self.batch_norm else 'no'} BN{by}"

    @property
    def data(self) -> str:
        """The name of the data set."""
        return DATASETS[self.dataset] + (" (stand-in)" if self.stand_in else "")

    @property
    def without(self) -> Column:
        """The same without batch norms."""
        return replace(self, batch_norm=False)

    @property
    def bounded(self) -> Column:
        """The same by the recipe for networks under a bound."""
        return replace(self, recipe=BOUNDED)

    def learning(self, records: Sequence[Record]) -> Column:
        """The column that claims rest on, of networks without batch norms or with clipped ones.

        That is the one by the recipe for bounds, where there are such runs: by the paper's own,
        short trainings stay at chance.
        """
        wanted = {"model": self.model, "batch_norm": self.batch_norm, "recipe": BOUNDED}
        is_there = any(r.config.get("dataset") == self.dataset for r in select(records, **wanted))
        return self.bounded if is_there else self


def select_column(records: Sequence[Record], column: Column, method: str) -> list[Record]:
    """The runs of a method in a column, whatever settings of its own it has."""
    return [
        record
        for record in select(records, model=column.model, batch_norm=column.batch_norm)
        if record.config.get("dataset") in (column.dataset, STAND_INS[column.dataset])
        and record.config.get("recipe", PAPER) == column.recipe
        and row_of(record.config) == method
    ]


def select_columns(
    records: Sequence[Record], columns: Iterable[Column], methods: Sequence[str]
) -> list[Record]:
    """The runs of some methods in some columns."""
    return [
        record
        for column in columns
        for method in methods
        for record in select_column(records, column, method)
    ]


def as_run(records: Sequence[Record], columns: Iterable[Column]) -> list[Column]:
    """The columns, those marked whose data were only stood in for."""
    return [
        replace(column, stand_in=any(_is_stand_in(record, column) for record in records))
        for column in columns
    ]


def _is_stand_in(record: Record, column: Column) -> bool:
    wanted = {"dataset": STAND_INS[column.dataset], "model": column.model}
    return all(record.config.get(key) == value for key, value in wanted.items())


def values(
    records: Sequence[Record],
    column: Column,
    method: str,
    metric: str,
    *,
    as_published: bool = False,
) -> dict[int, float]:
    """An accuracy from 0 to 1 by seed.

    A training that diverged left nothing better than chance on the test set. Under attack a network
    that has not learned is left out: one that always says the same keeps a tenth of its answers,
    which is more than a trained one may, and no sign of robustness.

    Args:
        records: Of one scale.
        column: To look at.
        method: By its plain name.
        metric: Which accuracy.
        as_published: Under the attack as the paper ran it, where that was run beside.
    """

    def accuracy(record: Record) -> float | None:
        if metric != "test_accuracy" and not has_learned(record):
            return None
        if record.result.get("diverged"):
            return CHANCE
        found = record.result.get("paper_protocol") if as_published else record.result
        return (found or {}).get(metric)

    return by_seed(select_column(records, column, method), accuracy)


def has_learned(record: Record) -> bool:
    """Whether a network is better on the test set than one that has learned nothing."""
    return float(record.result.get("test_accuracy") or 0.0) > UNTRAINED


def beats(
    records: Sequence[Record],
    columns: Iterable[Column],
    metrics: Iterable[str],
    first: str,
    others: Iterable[str],
    *,
    margin: float = 0.0,
) -> list[Question]:
    """Asks of each column, metric and other method whether `first` is above it.

    Args:
        records: Of one scale.
        columns: To look at.
        metrics: Accuracies to compare.
        first: The method that is said to be better.
        others: The methods that it is compared with.
        margin: How far below the others it may be; below zero, how far above it has to be.
    """
    others, metrics = list(others), list(metrics)
    return [
        between(records, metric, (column, first), (column, other), margin=margin, shared=shared)
        for column in columns
        for metric in metrics
        for shared in [_spread(records, column, metric)]
        for other in others
    ]


def _spread(records: Sequence[Record], column: Column, metric: str) -> Spread | None:
    """How much differences in a column vary from seed to seed, by all of the paper's methods.

    Networks that have not learned do not vary, and say nothing of those that have.
    """
    return spread_of_differences(
        [
            values(records, column, method, metric)
            for method in (*PAPERS, *CLAMPED, CONCAT)
            if all(map(has_learned, select_column(records, column, method)))
        ]
    )


def between(
    records: Sequence[Record],
    metric: str,
    first: tuple[Column, str],
    second: tuple[Column, str],
    *,
    margin: float = 0.0,
    shared: Spread | None = None,
) -> Question:
    """Asks whether one method in one column is above another in another, seed by seed."""
    where = str(first[0]) if first[0] == second[0] else f"{first[0]} against {second[0]}"
    who = first[1] if first[1] == second[1] else f"{first[1]} – {second[1]}"
    less = f", {100 * margin:+g} points" if margin else ""
    return against(
        f"{where}, {METRICS[metric]}: {who}{less}",
        values(records, *first, metric),
        values(records, *second, metric),
        margin=margin,
        step=step(records, metric),
        shared=shared,
        untrained=_has_untrained([select_column(records, *one) for one in (first, second)]),
    )


def _has_untrained(sides: Sequence[Sequence[Record]]) -> bool:
    """Whether both sides of a comparison were run, and all networks of one have not learned."""
    return all(sides) and any(not any(map(has_learned, side)) for side in sides)


def averaged(
    records: Sequence[Record], metric: str, methods: Sequence[str], above: Column, below: Column
) -> Question:
    """Asks whether methods are better in one column than in another, on their average."""
    pairs = [
        {seed: first[seed] - second[seed] for seed in first if seed in second}
        for method in methods
        for first, second in [[values(records, c, method, metric) for c in (above, below)]]
    ]
    seeds = set(pairs[0]).intersection(*pairs[1:]) if pairs else set()
    return Question(
        f"{above} against {below}, {METRICS[metric]}, mean of {len(methods)} methods",
        [summary([pair[seed] for pair in pairs]).mean for seed in sorted(seeds)],
        step(records, metric) / max(1, len(methods)),
    )


def step(records: Sequence[Record], metric: str) -> float:
    """The share of one image, of the fewest that any run counted the accuracy on."""
    return max((1 / _images(record, metric) for record in records), default=0.0)


def _images(record: Record, metric: str) -> int:
    if metric == "test_accuracy":
        return int(record.config.get("test_images") or IMAGES)
    attack = (record.config.get("attacks") or {}).get(metric.removesuffix("_accuracy")) or {}
    return int(attack.get("images") or IMAGES)
