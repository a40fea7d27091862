"""Operations along an axis that sort, take the largest, or weigh by exponentials."""

from __future__ import annotations

import math

from spectralclip._common import Shape
from spectralclip._lipschitz.flow import Node


def ordered_factor(node: Node, source: Shape) -> float:
    """Sorting, or taking some of the sorted numbers, moves them closer together, not apart.

    `logsumexp` has the weights of a softmax for its gradient, whose length is at most one.
    """
    return 1.0


def running_factor(node: Node, source: Shape) -> tuple[float, str]:
    """Results up to each entry, all of which may be the same one."""
    return math.sqrt(_size(node, source)), "each result may be the same entry"


def softmax_factor(node: Node, source: Shape) -> float:
    """The Jacobian is `diag(p) - p p^T`, with absolute row sums up to 1/2."""
    return 0.5 if _size(node, source) > 1 else 0.0


def log_softmax_factor(node: Node, source: Shape) -> tuple[float, str]:
    """The Jacobian is `I - 1 p^T`, largest at the corners of the simplex."""
    count = _size(node, source)
    return (math.sqrt(count) if count > 1 else 0.0), f"the root of {count} classes"


def _size(node: Node, source: Shape) -> int:
    """The length of the axis that an operation works along."""
    return source[node.argument("dim")] if source else 1
