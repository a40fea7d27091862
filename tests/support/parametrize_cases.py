"""Layers under a parametrization by their true norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """A layer of no known type, linear in its weight."""

    def __init__(self, inputs: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, inputs))
        self.register_buffer("scale", torch.rand(inputs) + 0.5)
        self.register_buffer("offset", torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale) @ self.weight.T + self.offset


class Residual(nn.Linear):
    """Affine, but its norm is not that of what the weight contributes."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda: nn.Linear(9, 7), (9,)),
    "stride": (lambda: nn.Conv2d(3, 4, 3, padding=1, stride=2), (3, 7, 7)),
    "reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 9, 9)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2), (4, 9, 9)),
    "circular": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (3, 11)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5)),
    "custom": (Scaled, (6,)),
    "one row": (lambda: nn.Linear(6, 1), (6,)),
}


over_cases = pytest.mark.parametrize("name", CASES)


def made(name: str, *, double: bool = True) -> tuple[nn.Module, tuple[int, ...]]:
    make, in_shape = CASES[name]
    return make().double() if double else make(), in_shape
