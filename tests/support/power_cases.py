"""What tests of power methods share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oracle import dense_norm
from spectralclip import attach


def at_rest(method: Any, steps: int, mode: str = "zeros") -> float:
    """The true norm of a layer that nothing but the method moves, with a bound of one."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode))
    with torch.no_grad():
        model[0].weight.mul_(3)
    attachment = attach(model, None, torch.zeros(1, 4, 7, 7), method=method)
    for _ in range(steps):
        attachment.step()
    return dense_norm(model, (4, 7, 7))


PADDINGS = ("zeros", "circular", "reflect", "replicate")
