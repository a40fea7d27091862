"""The momentum that an optimizer keeps of a weight, so that a clipped weight is not pushed out.

The momentum may be changed only where it is known how the next step follows from it. That is a
property of the optimizer's class, and not of the names in its state: Adamax, SOAP and Prodigy all
keep an `exp_avg`, and each turns it into a step in a way of its own. What is not in the table here
is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

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

    def within(self, part: Part | None) -> Momentum:
        """That of a part of the parameter, as views; None for all of it."""
        if part is None:
            return self
        squares = None if self.squares is None else part.of(self.squares)
        return Momentum(part.of(self.buffer), squares, self.eps)


class Part(NamedTuple):
    """Which part of a parameter a view of it is: its geometry, relative to the parameter's."""

    shape: torch.Size
    strides: tuple[int, ...]
    start: int
    whole_strides: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """The same part of a tensor like the parameter, as a view."""
        if whole.stride() != self.whole_strides:
            raise ValueError(
                f"An optimizer's state has strides {whole.stride()}, where its parameter has "
                f"{self.whole_strides}: a part of it cannot be found. Use "
                "SpectralClip(project_momentum=False)."
            )
        return whole.as_strided(self.shape, self.strides, whole.storage_offset() + self.start)


def whole_and_part(weight: Tensor) -> tuple[Tensor, Part | None]:
    """The parameter that a weight is; or of which it is a view, and of which part."""
    whole = weight._base
    if whole is None:
        return weight, None
    start = int(weight.storage_offset() - whole.storage_offset())
    return whole, Part(weight.shape, weight.stride(), start, whole.stride())


def project_outward_(
    momenta: Sequence[Sequence[Momentum]], directions: Sequence[Sequence[Tensor]]
) -> None:
    """Write to the buffers what `without_outward` finds.

    On a CPU one by one, in place: there calls are cheap, and new memory as large as all weights
    together is not (ResNet-18 of width 64: 30 ms in place of 106).
    """
    each = [momentum for own in momenta for momentum in own]
    inward = [direction for own in directions for direction in own]
    if any(not _is_on_host(m, d) for m, d in zip(each, inward, strict=True)):
        buffers = [momentum.buffer for momentum in each]
        torch._foreach_copy_(buffers, without_outward(momenta, directions))
        return
    for momentum, direction in zip(each, inward, strict=True):
        along = pushing = direction
        if momentum.squares is not None:
            root = momentum.squares.sqrt().add_(momentum.eps + TINY)
            along, pushing = direction * root, direction / root
        push = torch.dot(pushing.flatten(), momentum.buffer.flatten())
        size = torch.dot(direction.flatten(), direction.flatten()).clamp_min_(TINY)
        share = push.neg_().div_(size).relu_().nan_to_num_(0.0, 0.0, 0.0)
        momentum.buffer.addcmul_(along, share)


def _is_on_host(momentum: Momentum, direction: Tensor) -> bool:
    buffer = momentum.buffer
    in_full = direction.dtype == buffer.dtype and buffer.dtype in (torch.float32, torch.float64)
    return buffer.device.type == "cpu" and in_full


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
    each = [momentum for own in momenta for momentum in own]
    buffers = [momentum.buffer for momentum in each]
    # The buffers, and along what they may change: `d / P` for a direction d.
    pair = _flat([*buffers, *(inward for own in directions for inward in own)]).view(2, -1)
    scaled = pair[1]
    if any(momentum.squares is not None for momentum in each):
        squares = [torch.ones_like(m.buffer) if m.squares is None else m.squares for m in each]
        roots = _flat(squares).to(pair.dtype).sqrt_()
        parts = roots.split([own.numel() for own in buffers])
        torch._foreach_add_(parts, [momentum.eps + TINY for momentum in each])
        scaled = pair[1] / roots
        pair[1].mul_(roots)
    counts = [len(own) for own in momenta]
    sizes = [sum(momentum.buffer.numel() for momentum in own) for own in momenta]
    pairs = [own.unflatten(1, (n, -1)) for own, n in zip(pair.split(sizes, 1), counts, strict=True)]
    # `<P d, b>` and `<P d, d / P>`.
    products = [
        torch.bmm(own.transpose(0, 1), part.view(*own.shape[1:], 1))
        for own, part in zip(pairs, scaled.split(sizes), strict=True)
    ]
    found = torch.cat(products)[..., 0]
    shares = (-found[:, 0] / found[:, 1].clamp_min(TINY)).relu_().nan_to_num_(0.0, 0.0, 0.0)
    rows = [
        row
        for (own, along), share in zip(pairs, shares.split(counts), strict=True)
        for row in torch.addcmul(own, share[:, None], along)
    ]
    return [row.view_as(own).to(own.dtype) for row, own in zip(rows, buffers, strict=True)]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries in one row, in the widest of their types."""
    return torch.cat([tensor.flatten() for tensor in tensors])


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
