"""The norms of products of two small matrices, without forming them."""

from __future__ import annotations

import torch
from torch import Tensor

from spectralclip._bounds.interval import Interval


def product_bounds(left: Tensor, right: Tensor) -> list[Interval]:
    """Intervals around `||A^T B||` for pairs of float64 matrices with equally many rows.

    With `A^T = Q R` and `B^T = P S`, the product is `Q (R S^T) P^T`, whose norm is that of a matrix
    no larger than the number of rows. Rounding is in proportion to the norms of the factors.
    """
    first, second = (torch.linalg.qr(x.mT, mode="r").R for x in (left, right))
    norms = torch.linalg.matrix_norm(first @ second.mT, 2)
    sizes = torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)
    terms = sum(left.shape[1:]) + sum(right.shape[1:])
    margins = 4 * terms * torch.finfo(torch.float64).eps * sizes
    ends = zip((norms - margins).clamp_min(0).tolist(), (norms + margins).tolist(), strict=True)
    return [Interval(lower, upper, "exact", 0.0) for lower, upper in ends]


def factor_bounds(left: Tensor, right: Tensor, margin: float = 1e-9) -> list[float]:
    """`||A|| ||B||`, rounded up: what `||A^T R B||` does not exceed for any rotation R."""
    first, second = (torch.linalg.matrix_norm(x, 2) for x in (left, right))
    return [float(one) * (1 + margin) for one in first * second]
