"""How the norm of a layer differs between two audits."""

from __future__ import annotations

from typing import NamedTuple

from spectralclip._bounds import Interval


class Change(NamedTuple):
    """A layer in two audits; an interval is None where one of them does not have it.

    `change` is the relative change of the norm (-0.5: half of what it was), from the middles of
    the intervals; None where there is nothing to compare.
    """

    name: str
    before: Interval | None
    after: Interval | None
    change: float | None


def change_of(name: str, before: Interval | None, after: Interval | None) -> Change:
    """The row of a comparison."""
    if before is None or after is None or before.lower + before.upper == 0:
        return Change(name, before, after, None)
    ratio = (after.lower + after.upper) / (before.lower + before.upper)
    return Change(name, before, after, ratio - 1)


def percent(change: float | None) -> str:
    """A change as it is shown."""
    return "" if change is None else f"{change:+.1%}"
