"""What it would take to decide a claim that is undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.judging.statistics import LEVEL, Spread, half_width, spread_of, summary

MOST = 100  # seeds that anybody would run


def seeds_to_tell(
    values: Sequence[float],
    *,
    level: float = LEVEL,
    step: float = 0.0,
    shared: Spread | None = None,
) -> float:
    """With how many seeds the interval of the mean would leave zero out.

    The mean and the spread are taken to stay as they are; with more seeds the spread is known
    better, in proportion. Half of the time it takes more than that.

    Args:
        values: One a seed, two or more.
        level: Of confidence.
        step: As for `interval`.
        shared: As for `interval`.

    Returns:
        Infinity where it is more than `MOST`, or cannot be known.
    """
    spread, found = spread_of(values, step=step, shared=shared), summary(values)
    if spread is None:
        return math.inf
    each = spread.freedom / (found.count - 1)  # degrees of freedom that a seed brings
    for count in range(2, MOST + 1):
        foreseen = Spread(spread.std, max(1, round(each * (count - 1))))
        if half_width(foreseen, count, level) < abs(found.mean):
            return count
    return math.inf
