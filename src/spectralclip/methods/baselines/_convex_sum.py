"""Sums of branches with learned weights on the simplex, as Parseval networks have them."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from spectralclip.methods._settings import check_count


@final
class ConvexSum(nn.Module):
    """`sum_i a_i x_i` with learned weights that are never negative and sum to one.

    The weights are the point of the simplex nearest to the parameters, taken anew in each call:
    so they are convex after any step of any optimizer. Sums of 1-Lipschitz branches stay so.

    Example:
        >>> import torch
        >>> from spectralclip.methods import ConvexSum
        >>> ConvexSum(2)(torch.ones(3), torch.zeros(3))
        tensor([0.5000, 0.5000, 0.5000], grad_fn=<...>)
    """

    def __init__(self, terms: int = 2) -> None:
        """Begin at the mean of so many terms."""
        super().__init__()
        check_count(1, terms=terms)
        self.weights = nn.Parameter(torch.full((terms,), 1 / terms))

    def forward(self, *terms: Tensor) -> Tensor:
        """The combination."""
        if len(terms) != len(self.weights):
            raise ValueError(f"ConvexSum has {len(self.weights)} terms, got {len(terms)}.")
        weights = on_simplex(self.weights)
        total = weights[0] * terms[0]
        for weight, term in zip(weights[1:], terms[1:], strict=True):
            total = total + weight * term
        return total


def on_simplex(point: Tensor) -> Tensor:
    """The nearest point with entries that are not negative and sum to one."""
    ordered = point.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(
        1, len(point) + 1, dtype=point.dtype, device=point.device
    )
    threshold = excess[(ordered > excess).sum() - 1]
    return (point - threshold).clamp_min(0)
