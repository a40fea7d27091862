"""The rule that turns comparisons into verdicts, written before the runs.

A claim is a list of questions, each of which says of some number that it is above zero: mostly the
difference between two methods, seed by seed. The rule, for all claims alike:

- **reproduced**: every question's 95 % interval lies above zero. All have to, so that no correction
  for their number is needed.
- **contradicted**: some question's interval lies below zero, at a level of 1 - 0.05 / m for m
  questions, because one of many would be found below zero by chance.
- **not run**: neither, and of some question there is no run.
- **not at this scale**: none of these; there may be fewer than two seeds and thus no interval at
  all, or a network that has not learned, of which it means nothing what an attack leaves.

Methods that have run with the same seeds tell the spread of their differences together
(`statistics.spread_of_differences`). No standard deviation is taken to be smaller than one image of
those counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.experiment import Evidence, Record, Verdict
from experiments.judging import statistics
from experiments.judging.power import MOST, seeds_to_tell

RULE = (
    "Reproduced if every 95 % interval over seeds lies above zero; contradicted if one lies below "
    "zero, its level corrected for the number of comparisons; not run where runs are missing; "
    "otherwise not at this scale."
)
SHOWN = 3  # questions named in a reason


@dataclass(frozen=True)
class Question:
    """Something that a claim says is above zero.

    Attributes:
        name: In a few words, such as "mnist, with BN: fast_clip against gouk".
        values: The number, one for each seed.
        step: The smallest difference that could have been measured.
        unit: Of the reason: "points" for accuracies, "factor" for logarithms of ratios, or "".
        shared: How much such numbers vary, as other methods show, if they do.
        untrained: Whether there are no numbers because networks that were run have not learned.
    """

    name: str
    values: Sequence[float]
    step: float = 0.0
    unit: str = "points"
    shared: statistics.Spread | None = None
    untrained: bool = False

    def interval(self, level: float = statistics.LEVEL) -> statistics.Interval:
        """The interval of the mean."""
        return statistics.interval(self.values, level=level, step=self.step, shared=self.shared)

    def seeds_to_tell(self, level: float = statistics.LEVEL) -> float:
        """With how many seeds the interval would leave zero out, as things stand."""
        return seeds_to_tell(self.values, level=level, step=self.step, shared=self.shared)

    def evidence(self, needed: float) -> Evidence:
        """What a verdict that hangs on this question needs to be told of it.

        Args:
            needed: How many seeds would decide it.
        """
        found = statistics.spread_of(self.values, step=self.step, shared=self.shared)
        spread = "" if found is None else self._written(found.std).removeprefix("+")
        mean = self._written(statistics.summary(self.values).mean)
        return Evidence(self.name, mean, spread, len(self.values), needed)

    def words(self) -> str:
        """The name, the mean and its 95 % interval."""
        found = self.interval()
        if found.count < 2:
            return f"{self.name}: {self._written(found.mean)} (no interval)"
        low, high = self._written(found.low), self._written(found.high)
        return f"{self.name}: {self._written(found.mean)} [{low}, {high}]"

    def _written(self, value: float) -> str:
        if math.isnan(value):
            return "no runs"
        if self.unit == "points":
            return f"{100 * value:+.1f}"
        if self.unit == "factor":
            return f"× {math.exp(min(value, 700.0)):.3g}"
        return f"{value:+.3g}"


def judge(questions: Sequence[Question]) -> Verdict:
    """The verdict on a claim which says that every question's number is above zero."""
    if not questions:
        return Verdict("not run", "No runs to judge by.")
    empty = [question for question in questions if not question.values]
    missing = [question for question in empty if not question.untrained]
    asked = [question for question in questions if question.values]
    level = 1 - (1 - statistics.LEVEL) / len(questions)
    below = [question for question in asked if question.interval(level).is_below_zero]
    # The number of a factor is its logarithm.
    zero = "× 1" if all(question.unit == "factor" for question in questions) else "zero"
    if below:
        reason = f"Below {zero} in {_listed(below, len(questions))}"
        return Verdict("contradicted", reason, _refuting(below, level))
    if missing:
        return Verdict("not run", f"No runs for {_names(missing)}.")
    if empty:
        return Verdict("not at this scale", f"Networks that have not learned: {_names(empty)}.")
    above = [question for question in asked if question.interval().is_above_zero]
    if len(above) == len(questions):
        listed = _listed(_weakest(above), len(questions))
        return Verdict("reproduced", f"Above {zero} in {listed}", _supporting(above))
    if all(len(question.values) < 2 for question in asked):
        reason = f"One seed, no interval: {_shown(_weakest(asked))}"
        return Verdict("not at this scale", reason, _weakest(asked)[0].evidence(math.inf))
    rest = [question for question in asked if question not in above]
    negative = [question for question in asked if question.interval().mean <= 0]
    evidence = _refuting(negative, level) if negative else _supporting(asked)
    takes = _what_it_takes("contradict" if negative else "reproduce", evidence.needed)
    reason = f"Undecided in {_listed(_weakest(rest), len(questions))} {takes}"
    return Verdict("not at this scale", reason, evidence)


def _refuting(questions: Sequence[Question], level: float) -> Evidence:
    """Of questions whose number is below zero, the one that contradicts a claim the soonest."""
    needed = {id(question): question.seeds_to_tell(level) for question in questions}
    first = min(questions, key=lambda question: (needed[id(question)], question.interval().mean))
    return first.evidence(needed[id(first)])


def _supporting(questions: Sequence[Question]) -> Evidence:
    """Of questions whose number is above zero, the one that a claim has to wait for."""
    needed = {id(question): question.seeds_to_tell() for question in questions}
    last = max(questions, key=lambda question: (needed[id(question)], -question.interval().low))
    return last.evidence(needed[id(last)])


def _what_it_takes(kind: str, seeds: float) -> str:
    """How many seeds would decide a claim, if means and spreads stay as they are."""
    if math.isinf(seeds):
        return f"If means and spreads stay, more than {MOST} seeds would be needed to {kind} it."
    return f"If means and spreads stay, about {seeds:.0f} seeds would {kind} it."


def by_seed(
    records: Sequence[Record], measure: Callable[[Record], float | None], **wanted: Any
) -> dict[int, float]:
    """A number of each run whose configuration has the `wanted` values, by its seed.

    Args:
        records: To choose from.
        measure: Takes the number from a record; None or NaN leaves the run out.
        **wanted: What the configuration has to hold, such as `method="gouk"`.

    Raises:
        ValueError: Two runs have one seed.
    """
    found: dict[int, float] = {}
    taken: dict[int, str] = {}
    for record in select(records, **wanted):
        value = measure(record)
        if value is not None and not math.isnan(value):
            seed = int(record.config.get("seed", 0))
            if seed in found:
                raise ValueError(
                    f"runs {taken[seed]} and {record.id} are of one method and one seed, and only "
                    "one can stand in a comparison: give variants of a method an experiment of "
                    "their own."
                )
            found[seed], taken[seed] = float(value), record.id
    return found


def select(records: Sequence[Record], **wanted: Any) -> list[Record]:
    """Records whose configurations hold the `wanted` values."""
    return [
        record
        for record in records
        if all(record.config.get(key) == value for key, value in wanted.items())
    ]


def against(
    name: str,
    first: Mapping[int, float],
    second: Mapping[int, float],
    *,
    margin: float = 0.0,
    step: float = 0.0,
    shared: statistics.Spread | None = None,
    untrained: bool = False,
) -> Question:
    """Asks whether `first` is above `second`, seed by seed, or not further below than `margin`."""
    values = [value + margin for value in statistics.differences(first, second)]
    return Question(name, values, step, shared=shared, untrained=untrained)


def _weakest(questions: Sequence[Question]) -> list[Question]:
    def order(question: Question) -> tuple[float, float]:
        found = question.interval()
        return found.low, found.mean

    return sorted(questions, key=order)


def _listed(questions: Sequence[Question], total: int) -> str:
    return f"{len(questions)} of {total}: {_shown(questions)}"


def _shown(questions: Sequence[Question]) -> str:
    more = len(questions) - SHOWN
    words = "; ".join(question.words() for question in questions[:SHOWN])
    return f"{words}; and {more} more." if more > 0 else f"{words}."


def _names(questions: Sequence[Question]) -> str:
    more = len(questions) - SHOWN
    words = "; ".join(question.name for question in questions[:SHOWN])
    return f"{words}; and {more} more" if more > 0 else words
