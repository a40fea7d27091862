"""`certified_radius`: how far an input may move before a classifier changes its mind."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectralclip._lipschitz.result import NetworkBound


def certified_radius(logits: Tensor, lipschitz: float | NetworkBound) -> Tensor:
    """The distance, in the l2 norm, within which no input is classified otherwise.

    If the logits are L-Lipschitz, the difference of any two of them is `sqrt(2) L`-Lipschitz. So
    the largest stays the largest while the input moves by less than `margin / (sqrt(2) L)`, with
    the margin between the largest and the next.

    Args:
        logits: What the classifier returned, the classes along the last axis.
        lipschitz: A Lipschitz constant of the map from input to logits; of a `NetworkBound`, its
            upper end.

    Returns:
        One radius for each row; zero where the Lipschitz constant is infinite.

    Raises:
        ValueError: There are fewer than two classes, or the constant is not one.

    Example:
        >>> import torch
        >>> from spectralclip import certified_radius
        >>> certified_radius(torch.tensor([[3.0, 1.0, 0.0]]), 2.0)
        tensor([0.7071])
    """
    constant = lipschitz.upper if isinstance(lipschitz, NetworkBound) else float(lipschitz)
    if math.isnan(constant) or constant < 0:
        raise ValueError(f"lipschitz must be a number that is not negative, got {constant}.")
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise ValueError(
            "logits must have at least two classes along the last axis, got shape "
            f"{tuple(logits.shape)}. For a single logit z, the radius is |z| / L."
        )
    logits = logits.detach()
    logits = logits if logits.is_floating_point() else logits.to(torch.get_default_dtype())
    top = torch.topk(logits, 2, dim=-1).values
    margin = top[..., 0] - top[..., 1]
    if constant == 0:  # nothing ever changes, unless it is undecided already
        return torch.where(margin > 0, math.inf, 0.0).to(margin)
    return margin / (math.sqrt(2) * constant)
