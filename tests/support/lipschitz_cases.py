"""What tests of bounds on networks share."""

from __future__ import annotations

import torch
from torch import Tensor

X = torch.randn(1, 4, generator=torch.Generator().manual_seed(7))


def spread(*shape: int) -> Tensor:
    """Entries of which no two are alike."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
