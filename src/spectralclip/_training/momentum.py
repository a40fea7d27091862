"""The momentum that an optimizer keeps of a weight, so that a clipped weight is not pushed out.

The momentum may be changed only where it is known how the next step follows from it. That is a
property of the optimizer's class, and not of the names in its state: Adamax, SOAP and Prodigy all
keep an `exp_avg`, and each turns it into a step in a way of its own. What is not in the table here
is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

TINY = 1e-30


@final
@dataclass(frozen=True)
class Momentum:
    """The running average of gradients that the next steps will follow.

    The optimizer moves the weight by a multiple of `-buffer`, or of
    `-buffer / (sqrt(squares) + eps)`.

    Attributes:
        buffer: The optimizer's own tensor, to be changed in place.
        squares: The running average of squared gradients, as of Adam; None for all ones.
        eps: What is added to their roots.
    """

    buffer: Tensor
    squares: Tensor | None = None
    eps: float = 0.0


def without_outward(
    momenta: Sequence[Sequence[Momentum]], directions: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    """Buffers without what pushes each weight back along its direction, all one behind another.

    A step moves a weight by `-P b`, with P the optimizer's own metric. What of it goes against a
    direction in which the weight has just been moved inward is taken out, so that the change of
    the step is the least one. Buffers that do not push outward stay as they are.

    Args:
        momenta: By group, those of its equally shaped weights.
        directions: By group, along what each has been moved inward.
    """
    stacks, alongs, products = [], [], []
    for own, inward in zip(momenta, directions, strict=True):
        buffers = [momentum.buffer.to(inward[0].dtype) for momentum in own]
        pair = torch.stack([*buffers, *inward]).unflatten(0, (2, -1))
        stack, along = pair
        if own[0].squares is not None:
            squares = torch.stack([m.squares for m in own if m.squares is not None])
            roots = squares.to(pair.dtype).sqrt_().add_(own[0].eps + TINY)
            pair = torch.stack((stack / roots, along))
            along = along * roots
        # `<d, P b>` and `<d, d>`.
        dots = torch.bmm(pair.flatten(2).transpose(0, 1), pair[1].flatten(1)[..., None])
        products.append(dots[..., 0])
        stacks.append(stack)
        alongs.append(along)
    found = torch.cat(products)
    shares = (-found[:, 0] / found[:, 1].clamp_min(TINY)).relu_().nan_to_num_(0.0, 0.0, 0.0)
    parts = shares.split([len(own) for own in momenta])
    return [
        buffer.to(momentum.buffer.dtype)
        for own, stack, along, part in zip(momenta, stacks, alongs, parts, strict=True)
        for momentum, buffer in zip(
            own, torch.addcmul(stack, part.view(-1, *[1] * (stack.ndim - 1)), along), strict=True
        )
    ]


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
    return Momentum(buffer) if isinstance(buffer, Tensor) else None


def _adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Momentum:
    """The weight moves by `-lr * exp_avg / (sqrt(exp_avg_sq / correction) + eps)`.

    The correction, which depends on the number of the step alone, is left out: it multiplies all
    of the metric but for `eps`.
    """
    squares = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    return Momentum(state["exp_avg"], squares, float(group["eps"]))


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
