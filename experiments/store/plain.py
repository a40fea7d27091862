"""What JSON can hold, checked where a result is made and not where it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any, where: str = "result") -> Any:
    """A copy that goes through JSON unchanged: dicts with words for keys, lists, finite numbers.

    Args:
        value: To copy.
        where: What it is, for the error.

    Raises:
        TypeError: Something in it is of another type.
        ValueError: A number in it is not finite; JSON has no word for that.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: expected a finite number, got {value}: store None instead.")
        return float(value)  # NumPy's float64 is one too
    if isinstance(value, Mapping):
        return {_key(key, where): plain(one, f"{where}.{key}") for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, f"{where}[{index}]") for index, one in enumerate(value)]
    raise TypeError(
        f"{where}: expected what JSON can hold, got {type(value).__name__}: convert it first, "
        "as by .item() or .tolist()."
    )


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"{where}: expected words for keys, got {key!r} ({type(key).__name__}): use str(key)."
        )
    return key
