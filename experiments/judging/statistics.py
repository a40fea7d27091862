"""Means, spreads and confidence intervals over seeds.

Two methods are compared by the differences between their runs of the same seed: these share the
first weights, the order of the batches and the test images, so that what the seed does to both
drops out. The interval is Student's, for the mean of the differences.

Three seeds say little about how much such differences vary. Where several methods have run with the
same seeds, they say it together, as in any experiment in randomized blocks: what is left of each
number without its method's mean and its seed's mean is chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy import special

LEVEL = 0.95
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of some numbers.

    Attributes:
        count: How many there are.
        mean: Their mean; NaN where there are none.
        std: Their standard deviation, with `count - 1` below; None for fewer than two.
    """

    count: int
    mean: float
    std: float | None

    def written(self, form: str = ".3g", spread: str = ".2g") -> str:
        """As it stands in a table, "0.98 ± 0.01"; a dash where there are no numbers.

        Args:
            form: How the mean is formatted.
            spread: How the standard deviation is.
        """
        if not self.count:
            return "–"
        return f"{self.mean:{form}}" + ("" if self.std is None else f" ± {self.std:{spread}}")


def summary(values: Sequence[float]) -> Summary:
    """Mean and standard deviation of `values`."""
    if not values:
        return Summary(0, math.nan, None)
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(len(values), statistics.fmean(values), std)


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a mean.

    Attributes:
        count: How many numbers it rests on; with fewer than two it reaches to infinity.
        mean: The mean itself.
        low: Its lower end.
        high: Its upper end.
        level: How often such an interval holds the true mean.
    """

    count: int
    mean: float
    low: float
    high: float
    level: float

    @property
    def is_above_zero(self) -> bool:
        """Whether zero lies below the whole interval."""
        return self.low > 0

    @property
    def is_below_zero(self) -> bool:
        """Whether zero lies above the whole interval."""
        return self.high < 0


@dataclass(frozen=True)
class Spread:
    """A standard deviation, and how many degrees of freedom it was estimated with."""

    std: float
    freedom: int


def interval(
    values: Sequence[float],
    *,
    level: float = LEVEL,
    step: float = 0.0,
    shared: Spread | None = None,
) -> Interval:
    """Student's interval for the mean of `values`.

    Args:
        values: Independent measurements, one a seed.
        level: Of confidence.
        shared: How much such values vary, as others like them show; taken in place of their own
            spread, unless that is larger than chance allows (an F test at 5 %).
        step: The smallest difference that the measurement can show, such as one image of those
            counted. The standard deviation is never taken to be smaller: three seeds that agree
            to the image are no proof that a fourth would.

    Raises:
        ValueError: A value is not finite, or the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"interval expected a level between 0 and 1, got {level}; try 0.95.")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(
            f"interval expected finite values, got {list(values)}; leave out the runs that failed."
        )
    found, spread = summary(values), spread_of(values, step=step, shared=shared)
    if spread is None:
        return Interval(found.count, found.mean, -math.inf, math.inf, level)
    half = half_width(spread, found.count, level)
    return Interval(found.count, found.mean, found.mean - half, found.mean + half, level)


def spread_of(values: Sequence[float], *, step: float, shared: Spread | None) -> Spread | None:
    """The standard deviation that an interval rests on, as for `interval`; None for one value."""
    own = summary(values).std
    if own is None:
        return None
    spread = Spread(own, len(values) - 1)
    if shared is not None and not _is_larger(spread, shared):
        spread = shared
    return Spread(max(spread.std, step), spread.freedom)


def half_width(spread: Spread, count: int, level: float = LEVEL) -> float:
    """How far Student's interval for the mean of `count` values reaches to either side."""
    quantile = float(special.stdtrit(spread.freedom, 0.5 + level / 2))
    return quantile * spread.std / math.sqrt(count)


def _is_larger(own: Spread, shared: Spread) -> bool:
    """Whether a spread is larger than another, beyond chance."""
    if shared.std == 0:
        return own.std > 0
    ratio = (own.std / shared.std) ** 2
    return float(special.fdtrc(own.freedom, shared.freedom, ratio)) < 1 - LEVEL


def spread_of_differences(methods: Sequence[Mapping[Key, float]]) -> Spread | None:
    """How much the difference of two methods varies from seed to seed, by all of them together.

    Args:
        methods: A number by seed, of each method; those with fewer than two seeds do not count.

    Returns:
        None where fewer than two methods share two seeds.
    """
    counted = [found for found in methods if len(found) > 1]
    if len(counted) < 2:
        return None
    seeds = [key for key in counted[0] if all(key in found for found in counted)]
    if len(seeds) < 2:
        return None
    of_seed = {key: statistics.fmean(found[key] for found in counted) for key in seeds}
    whole = statistics.fmean(of_seed.values())
    left = 0.0
    for found in counted:
        mean = statistics.fmean(found[key] for key in seeds)
        left += sum((found[key] - mean - of_seed[key] + whole) ** 2 for key in seeds)
    freedom = (len(counted) - 1) * (len(seeds) - 1)
    return Spread(math.sqrt(2 * left / freedom), freedom)


def differences(first: Mapping[Key, float], second: Mapping[Key, float]) -> list[float]:
    """`first - second` at the keys that both have, in the order of `first`."""
    return [value - second[key] for key, value in first.items() if key in second]


def log_ratios(first: Mapping[Key, float], second: Mapping[Key, float]) -> list[float]:
    """`log(first / second)` at the keys that both have: above zero where `first` is larger.

    Times and norms differ by factors, and the logarithms of factors can be averaged.
    """
    return [
        math.log(value / second[key])
        for key, value in first.items()
        if key in second and value > 0 and second[key] > 0
    ]


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """How much y rises with x, by least squares; None where all have one x."""
    if not points:
        return None
    middle = statistics.fmean(x for x, _ in points)
    width = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * y for x, y in points) / width if width > 0 else None
