"""Tensors out of sight: in objects that are no containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

_DEPTH = 4  # of objects in objects


def hides_tensors(value: Any, depth: int = _DEPTH) -> bool:
    """Whether tensors are in a value that nobody finds who looks into containers alone."""
    if isinstance(value, (Tensor, nn.Module, type)) or depth == 0:
        return False
    if isinstance(value, Mapping):
        return any(hides_tensors(item, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return any(hides_tensors(item, depth - 1) for item in value)
    attributes = _attributes(value)
    if dataclasses.is_dataclass(value):  # its fields are found
        return any(hides_tensors(item, depth - 1) for item in attributes)
    return any(isinstance(item, Tensor) or _holds(item, depth - 1) for item in attributes)


def _holds(value: Any, depth: int) -> bool:
    """Whether there are tensors in a value at all, in sight or not."""
    if isinstance(value, (list, tuple, set, Mapping)):
        items = value.values() if isinstance(value, Mapping) else value
        return any(isinstance(item, Tensor) or _holds(item, depth - 1) for item in items)
    return hides_tensors(value, depth)


def _attributes(value: Any) -> list[Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    named = [getattr(value, name, None) for name in slots if isinstance(name, str)]
    return [*getattr(value, "__dict__", {}).values(), *named]
