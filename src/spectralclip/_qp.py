"""The small quadratic program behind every projection onto cuts."""

from __future__ import annotations

import torch
from torch import Tensor


def nonnegative_qp(Q: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """Minimize `lambda^T Q lambda / 2 - b^T lambda` over `lambda >= 0`.

    Lawson and Hanson's active sets: multipliers enter one at a time where the gradient asks for
    it, and leave as soon as they would turn negative, so that every step is a feasible descent
    and the number of steps is finite. Cuts may be nearly parallel: a ridge of rounding size
    keeps the systems solvable.

    Args:
        Q: Symmetric, positive semi-definite, `(j, j)`.
        b: `(j,)`.
        start: Multipliers to start from, such as those of a similar program.

    Returns:
        The multipliers, in float64 on the CPU.
    """
    scale = Q.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt().double().cpu()
    # In units in which every cut has length one.
    matrix = Q.double().cpu() * scale[:, None] * scale
    matrix = (matrix + matrix.T) / 2 + 1e-12 * torch.eye(
        len(scale), dtype=torch.float64, device="cpu"
    )
    wished = b.double().cpu() * scale
    threshold = 1e-10 * float(wished.abs().max().clamp_min(1e-300))
    count = len(scale)
    point = torch.zeros(count, dtype=torch.float64, device="cpu")
    free = torch.zeros(count, dtype=torch.bool, device="cpu")
    if start is not None:
        point = (start.double().cpu() / scale).clamp_min(0)
        free = point > 0
        point = _descend(matrix, wished, point, free)
    for _ in range(10 * count + 10):
        gradient = wished - matrix @ point
        gradient[free] = -torch.inf
        entering = int(gradient.argmax())
        if float(gradient[entering]) <= threshold:
            break
        free[entering] = True
        point = _descend(matrix, wished, point, free)
    return point * scale


def _descend(matrix: Tensor, wished: Tensor, point: Tensor, free: Tensor) -> Tensor:
    """Go to the minimum over the free multipliers; those that reach zero on the way are fixed."""
    while bool(free.any()):
        index = free.nonzero()[:, 0]
        goal = torch.zeros_like(point)
        goal[index] = torch.linalg.solve(matrix[index][:, index], wished[index])
        blocking = free & (goal <= 0)
        if not bool(blocking.any()):
            return goal
        # As far as the first multiplier that reaches zero.
        ratios = torch.where(blocking, point / (point - goal).clamp_min(1e-300), torch.inf)
        step = float(ratios.min())
        point = point + step * (goal - point)
        free &= ~(blocking & (ratios <= step))
        point[~free] = 0.0
    return torch.zeros_like(point)
