"""What a Lipschitz constant of the logits certifies, in the l2 norm, and how to train for it.

If the logits are L-Lipschitz, the difference of any two of them is `sqrt(2) L`-Lipschitz: each is a
component of the output, and the difference is its product with a vector of length `sqrt(2)`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from spectralclip._common import in_short
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
    constant = _constant(lipschitz)
    _require_classes(logits)
    top = torch.topk(_full(logits.detach()), 2, dim=-1).values
    margin = top[..., 0] - top[..., 1]
    if constant == 0:  # nothing ever changes, unless it is undecided already
        return torch.where(margin > 0, math.inf, 0.0).to(margin)
    return margin / (math.sqrt(2) * constant)


def certified_accuracy(
    logits: Tensor, labels: Tensor, *, lipschitz: float | NetworkBound, radius: float
) -> Tensor:
    """The share of inputs that are classified rightly, and stay so within a radius, in the l2 norm.

    An input counts if the logit of its label is above all others by more than
    `sqrt(2) * lipschitz * radius`. With `radius=0` this is the accuracy, ties aside.

    Args:
        logits: What the classifier returned, the classes along the last axis.
        labels: The right class of each row, as integers.
        lipschitz: A Lipschitz constant of the map from input to logits; of a `NetworkBound`, its
            upper end.
        radius: How far inputs may be moved.

    Returns:
        A number, as a tensor on the device of the logits.

    Raises:
        ValueError: The shapes do not fit, there are no inputs, labels are no classes, or a number
            is negative.

    Example:
        >>> import torch
        >>> from spectralclip import certified_accuracy
        >>> logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.5, 0.0], [2.0, 0.0, 0.0]])
        >>> labels = torch.tensor([0, 1, 2])
        >>> certified_accuracy(logits, labels, lipschitz=1.0, radius=0.5)
        tensor(0.3333)
    """
    threshold = _threshold(_constant(lipschitz), radius)
    labels = _checked_labels(logits, labels)
    if labels.numel() == 0:
        raise ValueError("certified_accuracy needs at least one input, got none.")
    full = _full(logits.detach())
    own = _own(full, labels)[..., 0]
    margin = own - full.scatter(-1, labels, -math.inf).amax(-1)
    return (margin > threshold).to(margin.dtype).mean()


def margin_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    lipschitz: float | Tensor | NetworkBound,
    radius: float,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """Cross entropy that asks for a margin: the logits as an input within a radius could make them.

    All logits but that of the label are raised by `sqrt(2) * lipschitz * radius`, by which an
    opponent may close the gap, before the cross entropy is taken. So small losses mean certified
    inputs, where plain cross entropy is content with the right class. This is Lipschitz-margin
    training (Tsuzuku et al. 2018).

    Args:
        logits: What the classifier returned, the classes along the last axis.
        labels: The right class of each row, as integers.
        lipschitz: A Lipschitz constant of the map from input to logits; of a `NetworkBound`, its
            upper end. Of a tensor without axes, gradients are taken too; it is not checked.
        radius: How far inputs may be moved.
        temperature: What all logits, the margin included, are divided by. Networks with a small
            Lipschitz constant have small logits, and learn little from them at a temperature of 1.
        reduction: "mean" over the rows, "sum", or "none" for one number a row.

    Raises:
        ValueError: The shapes do not fit, labels are no classes, a number is negative, or the
            Lipschitz constant is infinite.

    Example:
        >>> import torch
        >>> from spectralclip import margin_cross_entropy
        >>> logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
        >>> margin_cross_entropy(logits, labels, lipschitz=1.0, radius=0.0)
        tensor(0.1269)
        >>> margin_cross_entropy(logits, labels, lipschitz=1.0, radius=1.0)
        tensor(0.4425)
    """
    if not 0 < _number(temperature, "temperature") < math.inf:
        raise ValueError(f"temperature must be a positive number, got {temperature!r}.")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}.')
    if isinstance(lipschitz, Tensor) and lipschitz.ndim:
        raise ValueError(
            "lipschitz must be a number, or a tensor without axes: one constant for all rows, got "
            f"shape {tuple(lipschitz.shape)}."
        )
    constant = lipschitz if isinstance(lipschitz, Tensor) else _constant(lipschitz)
    if not isinstance(constant, Tensor) and math.isinf(constant):
        raise ValueError(
            "lipschitz must be finite, since no margin is enough for an infinite one. Of a "
            "NetworkBound, .unbounded says where the bound is missing."
        )
    threshold = _threshold(constant, radius)
    labels = _checked_labels(logits, labels)
    full = _full(logits)
    # Lowering one logit raises all others: softmax knows their differences alone.
    lowered = full.scatter(-1, labels, _own(full, labels) - threshold) / temperature
    rows = lowered.reshape(-1, lowered.shape[-1])
    loss = F.cross_entropy(rows, labels.flatten(), reduction=reduction)
    loss = loss.reshape(labels.shape[:-1]) if reduction == "none" else loss
    return loss.to(logits.dtype) if logits.is_floating_point() else loss


def _constant(lipschitz: float | NetworkBound) -> float:
    found = lipschitz.upper if isinstance(lipschitz, NetworkBound) else lipschitz
    constant = _number(found, "lipschitz")
    if math.isnan(constant) or constant < 0:
        raise ValueError(f"lipschitz must be a number that is not negative, got {constant}.")
    return constant


def _threshold(constant: float | Tensor, radius: float) -> float | Tensor:
    """By how much the difference of two logits may change within a radius."""
    if not 0 <= _number(radius, "radius") < math.inf:
        raise ValueError(f"radius must be a finite number that is not negative, got {radius!r}.")
    # No move changes anything, not even under a constant of infinity.
    return 0.0 if radius == 0 else math.sqrt(2) * radius * constant


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # the last of tensors with several
        raise TypeError(f"{name} must be a number, got {in_short(value)}.") from error


def _require_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {in_short(value)}.")


def _require_classes(logits: Tensor) -> None:
    _require_tensor(logits, "logits")
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise ValueError(
            "logits must have at least two classes along the last axis, got shape "
            f"{tuple(logits.shape)}. For a single logit z, the radius is |z| / L."
        )


def _checked_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """The labels with an axis for the classes. Their values are looked at by `_own`."""
    _require_classes(logits)
    _require_tensor(labels, "labels")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}: for one-hot rows, argmax.")
    if labels.shape != logits.shape[:-1] or labels.device != logits.device:
        of_maps = labels.shape == logits.shape[:1] + logits.shape[2:]
        hint = " Put the classes last: logits.movedim(1, -1)." if of_maps else ""
        raise ValueError(
            f"labels must have shape {tuple(logits.shape[:-1])}, as logits of shape "
            f"{tuple(logits.shape)} have beside their classes along the last axis, and be on "
            f"{logits.device}, got shape {tuple(labels.shape)} on {labels.device}.{hint}"
        )
    return labels.long()[..., None]


def _own(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits of the labels; where torch sees one that is no class, the error says so."""
    try:
        return logits.gather(-1, labels)
    except (IndexError, RuntimeError) as error:
        raise ValueError(
            f"labels must be from 0 to {logits.shape[-1] - 1}, for {logits.shape[-1]} classes: "
            f"{error}"
        ) from error


def _full(logits: Tensor) -> Tensor:
    """Differences of half-precision numbers are worth more than half precision."""
    if not logits.is_floating_point():
        return logits.to(torch.get_default_dtype())
    return logits if logits.dtype == torch.float64 else logits.float()
