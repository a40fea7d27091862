"""Numbers as users give them: of Python, NumPy or torch."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


def positive_number(value: object, name: str) -> float:
    """A positive finite number as a float; NumPy's scalars and tensors of one entry are numbers.

    Args:
        value: What the user gave.
        name: What it is called, for the error.

    Raises:
        ValueError: It is no real number, not finite, or not positive.
    """
    number: object = value
    if isinstance(value, (Tensor, np.ndarray, np.generic)) and value.ndim == 0:
        number = value.item()
    real = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not real or not 0 < number < math.inf:  # type: ignore[operator]
        raise ValueError(
            f"{name} must be a positive number such as 1.0 (of Python, a NumPy scalar or a "
            f"zero-dimensional tensor), got {value!r}."
        )
    return float(number)  # type: ignore[arg-type]
