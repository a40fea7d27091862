"""Residual connections that keep a bound."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn


@final
class ConvexMix(nn.Module):
    """`a * shortcut(x) + (1 - a) * branch(x)`, with one learned weight a between 0 and 1.

    A sum `x + f(x)` has the constant 1 + L for a branch of constant L, and half of it is a fixed
    compromise. A convex combination has at most the larger of the constants of shortcut and branch,
    whatever the weight, so that it can be learned: `a = sigmoid(theta)`.

    Args:
        branch: The module beside the shortcut, with outputs of the same shape.
        shortcut: The module on the other side; by default the input itself.
        weight: The weight a of the shortcut to begin with, strictly between 0 and 1.

    Attributes:
        theta: The parameter, `log(a / (1 - a))`.

    Example:
        >>> import torch
        >>> from spectralclip.nn import ConvexMix
        >>> mix = ConvexMix(torch.nn.ReLU(), weight=0.25)
        >>> mix(torch.tensor([-4.0, 4.0]))
        tensor([-1.,  4.], grad_fn=<...>)
        >>> round(mix.weight.item(), 3)
        0.25
    """

    def __init__(
        self, branch: nn.Module, shortcut: nn.Module | None = None, *, weight: float = 0.5
    ) -> None:
        """Begin with that weight."""
        super().__init__()
        if not isinstance(weight, (int, float)) or not 0 < weight < 1:
            raise ValueError(f"weight must be strictly between 0 and 1, got {weight!r}.")
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        like = next(self.parameters(), torch.empty(0))
        theta = math.log(weight / (1 - weight))
        self.theta = nn.Parameter(torch.full((), theta, dtype=like.dtype, device=like.device))

    @property
    def weight(self) -> Tensor:
        """The weight of the shortcut as it is now."""
        return self.theta.sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """The combination; the shapes of both sides have to be the same."""
        kept, changed = self.shortcut(x), self.branch(x)
        if kept.shape != changed.shape:
            raise ValueError(
                f"ConvexMix got outputs of shape {tuple(kept.shape)} from its shortcut and "
                f"{tuple(changed.shape)} from its branch, which must be the same. Pass a shortcut "
                "that changes the shape as the branch does."
            )
        weight = self.weight
        return weight * kept + (1 - weight) * changed  # type: ignore[no-any-return]
