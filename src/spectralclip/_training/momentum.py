"""The momentum that an optimizer keeps of a weight, so that a clipped weight is not pushed out.

The momentum may be changed only where it is known how the next step follows from it. That is a
property of the optimizer's class, and not of the names in its state: Adamax, SOAP and Prodigy all
keep an `exp_avg`, and each turns it into a step in a way of its own. What is not in the table here
is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, optim
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
    """The momentum of a parameter, or None where there is none, or none that may be changed."""
    read = _KNOWN.get(type(optimizer))
    # Not by indexing: that would make an entry in the optimizer's own table.
    state = optimizer.state.get(parameter)
    if read is None or not state:
        return None
    group = next(
        group for group in optimizer.param_groups if any(p is parameter for p in group["params"])
    )
    return read(state, group)


def has_unknown_momentum(optimizer: Optimizer) -> bool:
    """Whether the optimizer may follow a momentum that is left alone."""
    return type(optimizer) not in _KNOWN and type(optimizer) not in _WITHOUT


def _plain(state: Mapping[str, Any], group: Mapping[str, Any]) -> Momentum | None:
    """The weight moves by `-lr * buffer`."""
    buffer = state.get("momentum_buffer")
    return Momentum(buffer, None) if isinstance(buffer, Tensor) else None


def _adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Momentum:
    """The weight moves by `-lr * exp_avg / (sqrt(exp_avg_sq / correction) + eps)`."""
    squares = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    correction = 1 - float(group["betas"][1]) ** float(state["step"])
    root = (squares / max(correction, 1e-12)).sqrt_()
    # Entries that have never had a gradient would weigh infinitely much.
    floor = max(float(group["eps"]), float(torch.finfo(root.dtype).tiny))
    return Momentum(state["exp_avg"], root.add_(floor).reciprocal_())


_Reader: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], Momentum | None]

# By the very class: a subclass may step in another way.
_KNOWN: dict[type[Optimizer], _Reader] = {
    optim.SGD: _plain,
    optim.RMSprop: _plain,
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.NAdam: _adam,
}
_WITHOUT = (optim.Adadelta, optim.Adafactor, optim.Adagrad, optim.ASGD, optim.LBFGS, optim.Rprop)
