"""Networks under one bound, and steps that press against it."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXAMPLE = torch.zeros(2, 2, 6, 6)


class Network(nn.Module):
    """Convolutions, a residual sum, a concatenation, a pool and a dense layer."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.branch = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.side = nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)
        self.head = nn.Linear(16, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + torch.relu(self.norm(self.branch(x)))
        parts = [torch.relu(self.side(x)).mean((2, 3)), F.avg_pool2d(x, 6).flatten(1)]
        return self.head(torch.cat(parts, 1))  # type: ignore[no-any-return]


def dense(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(one, other) for one, other in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def grow(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps that make every output larger."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(torch.randn(16, 8, generator=generator))
        (-(outputs - outputs.roll(1, 0)).abs().mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def product(model: nn.Module) -> float:
    """Of the norms of dense layers, by dense decompositions in float64."""
    weights = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    return math.prod(float(torch.linalg.matrix_norm(w.detach().double(), 2)) for w in weights)
