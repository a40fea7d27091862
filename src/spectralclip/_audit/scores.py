"""What a network makes of differences between inputs, and what holds its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, final, runtime_checkable

from torch import Tensor, nn

from spectralclip._audit.layer import LayerAudit
from spectralclip._models import (
    ExampleInputs,
    normal_inputs,
    spread_and_gain,
    tensors_in,
)


@final
@dataclass(frozen=True)
class Scores:
    """How much of what differs between inputs arrives at the output of a network.

    Attributes:
        spread: The standard deviation of the outputs over the inputs, as the root mean square over
            the outputs. Far below 1, a loss such as cross entropy cannot tell inputs apart.
        gain: The same over that of the inputs, both as vectors; None for inputs that are no
            floating-point numbers.
        over: Which inputs: "example", those of the audit, if they differ from each other, else
            "normal", standard normal ones of their shape.
    """

    spread: float
    gain: float | None
    over: Literal["example", "normal"]


@runtime_checkable
class Holding(Protocol):
    """What an audit asks of an `Attachment`."""

    @property
    def max_norms(self) -> Mapping[str, float]:
        """The bound of each layer that is held."""

    def pressures(self) -> Mapping[str, float]:
        """The share of a step that is undone, by layer."""


def scores_of(model: nn.Module, example_inputs: ExampleInputs) -> Scores | None:
    """Spread and gain over the example inputs or random ones; None where there are none."""
    over: Literal["example", "normal"] = "example" if _differ(example_inputs) else "normal"
    inputs = example_inputs if over == "example" else normal_inputs(model, example_inputs)
    if not _differ(inputs):
        return None
    try:
        spread, gain = spread_and_gain(model, inputs)
    except Exception:  # whatever a model does not like about a batch, or about random inputs
        return None
    if not math.isfinite(spread):
        return None
    return Scores(spread, gain if math.isfinite(gain) else None, over)


def _differ(inputs: ExampleInputs) -> bool:
    """Whether this is a batch of two or more that are not all the same."""
    tensors: Sequence[Tensor] = list(tensors_in(inputs))
    batch = all(tensor.ndim and len(tensor) > 1 for tensor in tensors)
    return batch and any(bool((tensor != tensor[:1]).any()) for tensor in tensors)


def require_holding(attachment: object, names: Sequence[str]) -> None:
    """Raise unless this is an attachment that holds some of these layers, or None."""
    if attachment is None:
        return
    if not isinstance(attachment, Holding):
        raise TypeError(
            f"attachment must be what attach returned, got {type(attachment).__name__}."
        )
    held = list(attachment.max_norms)
    if held and not set(held) & set(names):
        raise ValueError(
            f"attachment holds {held[:3]}, and the model has no such layers: give the attachment "
            "of this model, or audit the model that it was attached to."
        )


def held_by(attachment: Holding | None, layer: LayerAudit) -> LayerAudit:
    """The layer, with its bound and pressure in training where it is held."""
    if attachment is None or layer.name not in attachment.max_norms:
        return layer
    return replace(
        layer,
        max_norm=attachment.max_norms[layer.name],
        pressure=attachment.pressures().get(layer.name),
    )
