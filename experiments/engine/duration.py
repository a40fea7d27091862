"""How long runs may take, as it is written in a command."""

from __future__ import annotations

import re

UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """A time such as 150m, in seconds.

    Raises:
        ValueError: It is none.

    Example:
        >>> from experiments.engine.duration import seconds
        >>> seconds("1.5h")
        5400.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise ValueError(f"expected a time such as 150m, 2h or 90s, got {text!r}.")
    return float(found[1]) * UNITS[found[2]]
