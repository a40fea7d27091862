"""The norm of a batch norm, and the clamp that bounds it (Gouk et al. 2021)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spectralclip._linalg import wide
from spectralclip._operators import batch_norm_scale


@torch.no_grad()
def clamp_batch_norm_(module: Any, bound: float) -> float:
    """Clamp a batch norm's scale where it is too large; its norm then."""
    gamma: Tensor = module.weight
    # Few numbers: in double precision the bound holds to the last bit.
    scale = batch_norm_scale(wide(module.running_var), module.eps)
    norm = float((wide(gamma).abs() * scale).max())
    if math.isfinite(norm) and norm > bound:
        exact = bound / scale
        limit = exact.to(gamma.dtype)
        below = limit * (1 - torch.finfo(gamma.dtype).eps)
        limit = torch.where(limit.to(exact.dtype) > exact, below, limit).to(gamma.device)
        gamma.clamp_(-limit, limit)
        norm = float((wide(gamma).abs() * scale).max())
    return norm
