"""What an audit says of attention heads, in plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from spectralclip._audit.attention import heads_of
from spectralclip._bounds import Interval
from spectralclip._common import printable
from spectralclip._models import ExampleInputs, Survey

HEADS = "(attention heads)"  # among the names of layers


@final
@dataclass(frozen=True)
class HeadAudit:
    """What is known of one attention head; see `Head` for the two products.

    Attributes:
        name: The name of the layer, and the number of the head in brackets.
        layer: The name of the module in which attention is computed.
        index: The number of the head in it.
        key: The number of the key that it uses, which several heads may share.
        logit: An interval around the norm of `s W_q^T W_k`; None where there is none.
        value: An interval around the norm of `W_o W_v`; None where there is none.
        is_rotary: Whether queries and keys are rotated by their positions.
        note: Why an interval is missing, else empty.
    """

    name: str
    layer: str
    index: int
    key: int
    logit: Interval | None
    value: Interval | None
    is_rotary: bool
    note: str


def audited_heads(
    model: nn.Module, example_inputs: ExampleInputs, survey: Survey
) -> tuple[HeadAudit, ...] | str:
    """The heads of a model, or why they could not be looked for."""
    try:
        found = heads_of(model, example_inputs, survey)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return tuple(
        HeadAudit(name, h.layer, h.index, h.key, h.logit, h.value, h.is_rotary, h.note)
        for name, h in found.items()
    )


def heads_text(heads: Sequence[HeadAudit]) -> str:
    """All heads in a line: how many there are, and which can do most."""
    if not heads:
        return ""
    parts = [f"{len(heads)} attention heads"]
    for about in ("logit", "value"):
        known = [(own.upper, head.name) for head in heads if (own := getattr(head, about))]
        if known:
            upper, name = max(known)
            parts.append(f"largest {about} norm {upper:.4g} at {printable(name)}")
    missing = sum(bool(head.note) for head in heads)
    parts += [f"{missing} with something missing"] if missing else []
    return ", ".join(parts) + "."
