"""What an optimizer remembers of a weight, so that a clipped weight is not pushed out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.optim import Optimizer


@final
@dataclass(frozen=True)
class Momentum:
    """The running average of gradients that the next steps will follow.

    The optimizer moves the weight by a multiple of `-buffer`, or of `-buffer * metric`.

    Attributes:
        buffer: The optimizer's own tensor, to be changed in place.
        metric: What each entry is multiplied with, as by Adam; None for all ones.
    """

    buffer: Tensor
    metric: Tensor | None


def momentum_of(optimizer: Optimizer, parameter: Tensor) -> Momentum | None:
    """The momentum of a parameter, or None where the optimizer keeps none that is known here.

    SGD with momentum and its likes (`momentum_buffer`), Adam and its likes (`exp_avg` with
    `exp_avg_sq`), and those with `exp_avg` alone, such as Lion.
    """
    # Not by indexing: that would make an entry in the optimizer's own table.
    state = optimizer.state.get(parameter)
    if not state:
        return None
    buffer = state.get("momentum_buffer")
    if isinstance(buffer, Tensor):
        return Momentum(buffer, None)
    buffer, squares = state.get("exp_avg"), state.get("exp_avg_sq")
    if not isinstance(buffer, Tensor):
        return None
    if not isinstance(squares, Tensor) or squares.shape != buffer.shape:
        return Momentum(buffer, None)
    group = next(
        group for group in optimizer.param_groups if any(p is parameter for p in group["params"])
    )
    count = float(state.get("step", 0))
    correction = 1 - group["betas"][1] ** count if count > 0 and "betas" in group else 1.0
    eps = group.get("eps", 0.0)
    root = (squares / max(correction, 1e-12)).sqrt_()
    # Entries that have never had a gradient would weigh infinitely much.
    floor = max(eps, float(torch.finfo(root.dtype).tiny))
    return Momentum(buffer, root.add_(floor).reciprocal_())
