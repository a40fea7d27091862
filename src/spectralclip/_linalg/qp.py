"""The small quadratic program behind every projection onto cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectralclip._linalg.precision import on_host

Array = npt.NDArray[np.float64]


def nonnegative_qp(Q: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """Minimize `lambda^T Q lambda / 2 - b^T lambda` over `lambda >= 0`.

    Lawson and Hanson's active sets: multipliers enter one at a time where the gradient asks for
    it, and leave as soon as they would turn negative, so that every step is a feasible descent
    and the number of steps is finite. Cuts may be nearly parallel: a ridge of rounding size
    keeps the systems solvable. The programs are so small that NumPy's short calls count.

    Q is symmetric and positive semi-definite; `start` are the multipliers of a similar program. The
    result is in float64 on the CPU.
    """
    first = None if start is None else on_host(start).numpy()
    return torch.from_numpy(_solve(on_host(Q).numpy(), on_host(b).numpy(), first))


@np.errstate(all="ignore")
def _solve(Q: Array, b: Array, start: Array | None) -> Array:
    scale = 1 / np.sqrt(np.maximum(Q.diagonal(), np.finfo(np.float64).tiny))
    # In units in which every cut has length one.
    matrix = Q * scale[:, None] * scale
    matrix = (matrix + matrix.T) / 2
    matrix.flat[:: len(b) + 1] += 1e-12
    target = b * scale
    threshold = 1e-10 * max(float(np.abs(target).max(initial=0.0)), 1e-300)
    count = len(scale)
    point, free = np.zeros(count), np.zeros(count, dtype=bool)
    if start is not None:
        point = np.maximum(start / scale, 0)
        free = point > 0
        point = _descend(matrix, target, point, free)
    for _ in range(10 * count + 10):
        gradient = target - matrix @ point
        gradient[free] = -np.inf
        entering = int(gradient.argmax()) if count else 0
        if not count or gradient[entering] <= threshold:
            break
        free[entering] = True
        point = _descend(matrix, target, point, free)
    solution: Array = point * scale
    return solution


def _descend(matrix: Array, target: Array, point: Array, free: Any) -> Array:
    """Go to the minimum over the free multipliers; those that reach zero on the way are fixed."""
    while free.any():
        index = np.flatnonzero(free)
        goal = np.zeros_like(point)
        goal[index] = np.linalg.solve(matrix[np.ix_(index, index)], target[index])
        blocking = free & (goal <= 0)
        if not blocking.any():
            return goal
        # As far as the first multiplier that reaches zero.
        lengths, ratios = np.maximum(point - goal, 1e-300), np.full_like(point, np.inf)
        np.divide(point, lengths, out=ratios, where=blocking)
        step = float(ratios.min())
        point = point + step * (goal - point)
        free &= ~(blocking & (ratios <= step))
        point[~free] = 0.0
    return np.zeros_like(point)
