"""The norm of a batch norm, and the clamp that bounds it (Gouk et al. 2021)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spectralclip._linalg import wide


@torch.no_grad()
def clamp_batch_norm_(module: Any, bound: float) -> float:
    """Clamp a batch norm's scale where it is too large; its norm then."""
    gamma: Tensor = module.weight
    # Few numbers: in double precision the bound holds to the last bit.
    deviation = (wide(module.running_var) + module.eps).sqrt()
    norm = _norm(gamma, deviation)
    if math.isfinite(norm) and norm > bound:
        limit = _rounded_down(bound * deviation, gamma.dtype)
        limit = limit.to(gamma.device)
        gamma.clamp_(-limit, limit)
        norm = _norm(gamma, deviation)
    return norm


def _norm(gamma: Tensor, deviation: Tensor) -> float:
    return float((wide(gamma).abs() / deviation).max())


def _rounded_down(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Positive numbers in another precision, never larger than they were."""
    rounded = numbers.to(dtype)
    below = rounded * (1 - torch.finfo(dtype).eps)
    return torch.where(rounded.to(numbers.dtype) > numbers, below, rounded)
