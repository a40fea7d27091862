"""What the numbers of an attack must be: one that is none would pass for full robustness."""

from __future__ import annotations

import math
from typing import TypeGuard


def positive(name: str, value: object) -> None:
    """Refuse what is no finite number above 0."""
    if not (_is_finite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}.")


def not_negative(name: str, value: object) -> None:
    """Refuse what is no finite number from 0 on."""
    if not (_is_finite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number, at least 0, got {value!r}.")


def whole(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no integer, or too small."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}.")


def _is_finite(value: object) -> TypeGuard[float]:
    # True is an int to Python, and a mistake here.
    return isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value)
