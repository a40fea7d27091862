"""Shapes of tensors without their batch dimension."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]


def as_shape(in_shape: Sequence[int] | int) -> Shape:
    """A shape as a tuple; a single size stands for a shape of one entry."""
    sizes = (in_shape,) if isinstance(in_shape, int) else in_shape
    return tuple(operator.index(size) for size in sizes)
