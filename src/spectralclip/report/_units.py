"""Which rows the network computes with, and which are only parts of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def units(layers: Sequence[Mapping[str, Any]]) -> list[bool]:
    """For each row, whether it stands for itself: no other row has all of its parts and more.

    A convolution that a batch norm follows is a part of their chain, and its own norm says
    little: what counts is the chain's.
    """
    parts = [frozenset(layer.get("parts") or ()) for layer in layers]
    holders: dict[str, list[frozenset[str]]] = {}
    for whole in parts:
        for part in whole:
            holders.setdefault(part, []).append(whole)
    return [not own or not any(own < whole for whole in holders[next(iter(own))]) for own in parts]
