"""How the report writes numbers: few digits, and bounds never rounded to the wrong side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import TypeGuard

MISSING = "–"
UNBOUNDED = "not bounded"
# A bound this close to its rounded form counts as equal to it: 1.0000001 is written 1.00.
SLACK = Decimal("1e-6")


def number(value: float | None) -> str:
    """`value` in a few digits, rounded to the nearest: 1.00, 12.3, 1234, 4.1e+07."""
    return _written(value, ROUND_HALF_EVEN)


def at_most(value: float | None) -> str:
    """An upper bound, rounded up; what has none is "not bounded"."""
    return UNBOUNDED if not is_finite(value) else _written(value, ROUND_CEILING)


def at_least(value: float | None) -> str:
    """A lower bound, rounded down."""
    return _written(value, ROUND_FLOOR)


def interval(lower: float | None, upper: float | None) -> str:
    """Both ends, or one number where they agree in the digits shown."""
    low, high = at_least(lower), at_most(upper)
    return low if low == high else f"{low} – {high}"


def factor(value: float | None) -> str:
    """A ratio: "× 0.43"."""
    return MISSING if not is_finite(value) else f"× {number(value)}"


def count(value: int | None) -> str:
    """A number of things: 640, 12.3 k, 11.2 M."""
    if value is None:
        return MISSING
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if value >= size:
            return f"{number(value / (10**3 if unit == 'k' else size))} {unit}"
    return str(value)


def shape(sizes: Sequence[int] | None) -> str:
    """The sizes of a tensor: 3×32×32."""
    return MISSING if sizes is None else "×".join(str(size) for size in sizes) or "scalar"


def is_finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a number at all, neither infinite nor missing."""
    return value is not None and math.isfinite(value)


def ratio(above: float | None, below: float | None) -> float | None:
    """`above / below`, or None where that means nothing."""
    quotient = above / below if is_finite(above) and below else None
    return quotient if is_finite(quotient) else None


def short(value: float | None) -> float | None:
    """Six digits, which is more than a chart can show and a third of the text."""
    return float(f"{value:.6g}") if is_finite(value) else None


def chance(probability: float) -> str:
    """How likely something is at most, or that it is certain not to be."""
    return at_most(probability) if probability else "none"


def _written(value: float | None, rounding: str) -> str:
    if not is_finite(value):
        return MISSING
    if value == 0:
        return "0"
    exact = Decimal(value)
    rounded = _rounded(exact, ROUND_HALF_EVEN)
    if abs(rounded - exact) > SLACK * abs(exact):
        rounded = _rounded(exact, rounding)
    digits = _digits(rounded)
    if digits == 2:
        return f"{float(rounded):.1e}"
    return f"{rounded:.{max(0, digits - 1 - rounded.adjusted())}f}"


def _rounded(value: Decimal, rounding: str) -> Decimal:
    return Context(prec=_digits(value), rounding=rounding).plus(value)


def _digits(value: Decimal) -> int:
    """Significant digits by size; two are for what is written with an exponent."""
    if not Decimal("1e-3") <= abs(value) < 10**4:
        return 2
    return 4 if abs(value) >= 10**3 else 3
