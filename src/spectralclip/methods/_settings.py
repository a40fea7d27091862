"""Checks of the settings of methods."""

from __future__ import annotations

import math
import operator


def check_positive(**settings: float) -> None:
    """Raise unless each setting is a positive finite number."""
    for name, number in settings.items():
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not real or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a positive finite number, got {number!r}.")


def check_count(least: int, **settings: int) -> None:
    """Raise unless each setting is an integer that is large enough."""
    for name, count in settings.items():
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name} must be an integer, got {count!r}.")
        if operator.index(count) < least:
            raise ValueError(f"{name} must be at least {least}, got {count}.")
