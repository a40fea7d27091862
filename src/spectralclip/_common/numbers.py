"""Numbers and shapes as users give them: of Python, NumPy or torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
"""Of a tensor, without its batch dimension."""

# Beyond these, a layer in units of its bound leaves the range of single precision.
LEAST_BOUND, MOST_BOUND = 1e-30, 1e30


def positive_number(value: object, name: str) -> float:
    """A positive finite number as a float; NumPy's scalars and tensors of one entry are numbers.

    It has to lie within what single precision can tell; errors call it by its `name`.
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
    if not LEAST_BOUND <= number <= MOST_BOUND:  # type: ignore[operator]
        raise ValueError(
            f"{name} must lie between {LEAST_BOUND:g} and {MOST_BOUND:g}, got {value!r}."
        )
    return float(number)  # type: ignore[arg-type]


def check_count(value: object, name: str, least: int) -> None:
    """Raise unless it is a whole number of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def checked_seed(seed: object) -> int:
    """A seed as an integer of at most 63 bits."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or isinstance(seed, Tensor):
        raise TypeError(f"seed must be an integer such as 0, got {seed!r}.")
    number = operator.index(seed)
    if not 0 <= number < 2**63:
        raise ValueError(f"seed must be between 0 and 2**63 - 1, got {seed!r}.")
    return number


def checked_generator(generator: object) -> torch.Generator:
    """A source of random numbers; without one, the same for each call."""
    if generator is None:
        return torch.Generator("cpu").manual_seed(0)
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {generator!r}: for a seed, give "
            "torch.Generator().manual_seed(seed)."
        )
    return generator


def as_shape(in_shape: Sequence[int] | int) -> Shape:
    """A shape as a tuple; a single size stands for a shape of one entry."""
    sizes = (in_shape,) if isinstance(in_shape, int) else in_shape
    return tuple(operator.index(size) for size in sizes)
