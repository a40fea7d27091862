"""How far singular values are from the true ones."""

from __future__ import annotations

import math

import numpy as np


def worst_error(values: np.ndarray, reference: np.ndarray) -> float:
    """The largest relative error, value by value in descending order."""
    if len(values) == 0:
        return math.nan
    true = reference[: len(values)]
    return float(np.max(np.abs(np.asarray(values, dtype=np.float64) - true) / true))
