"""States of attachments: checked before they are loaded, and loaded whole or not at all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_KEYS = ("method", "steps", "norms", "layers", "pressures")
_ALLOCATION = ("parts", "reach", "bounds")
_ORIGIN = "it is not from Attachment.state_dict()"


def require_state(
    state: object, method: str, layers: Collection[str], optimizers: int, *, for_network: bool
) -> None:
    """Refuse what is no state of this method on this model with so many optimizers.

    Args:
        state: What was given.
        method: The name of the method.
        layers: Those of the model.
        optimizers: How many there are.
        for_network: Whether the network's own bound is held, which takes an allocation.

    Raises:
        TypeError: It, or one of its entries, is of another type.
        ValueError: It lacks entries, or is of another method or of other layers.
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            f"Expected what Attachment.state_dict() returned, a dict, got {_kind(state)}: was "
            "it saved, and is it the right entry of the checkpoint?"
        )
    missing = [key for key in _KEYS if key not in state]
    if missing:
        has = ", ".join(repr(key) for key in list(state)[:5]) or "nothing"
        raise ValueError(f"The state lacks {missing}: {_ORIGIN}. It has {has}.")
    if state["method"] != method:
        raise ValueError(
            f"This state is of {state['method']!r}, and cannot be loaded into {method!r}."
        )
    steps = state["steps"]
    if not isinstance(steps, (list, tuple)) or not all(map(_is_count, steps)):
        raise TypeError(f"'steps' of the state must be the steps of each optimizer, got {steps!r}.")
    if len(steps) != optimizers:
        raise ValueError(
            f"The state is of {len(steps)} optimizers, and this attachment is to {optimizers}: "
            "attach to as many as the state was made with."
        )
    for key in ("norms", "layers", "pressures"):
        if not isinstance(state[key], Mapping):
            raise TypeError(
                f"{key!r} of the state must be a dict by layer, got {_kind(state[key])}: {_ORIGIN}."
            )
    if not all(map(_is_number, state["pressures"].values())):
        raise TypeError(f"'pressures' of the state must be numbers by layer: {_ORIGIN}.")
    if for_network:
        _require_allocation(state.get("allocation"))
    elif state.get("allocation") is not None:
        raise ValueError(
            "The state is of an attachment that held the network by max_lipschitz, and this one "
            "holds layers by max_norm: attach as the run that saved it did."
        )
    unknown = [name for name in state["layers"] if name not in layers]
    if unknown:
        raise ValueError(
            f"The state speaks of the layers {unknown}, which this model does not have; it has "
            f"{list(layers)}."
        )
    for name, norm in state["norms"].items():
        if not (isinstance(norm, (list, tuple)) and len(norm) == 3 and all(map(_is_number, norm))):
            raise TypeError(
                f"The norm of layer {name!r} in the state must be a number, whether it was "
                f"checked, and a step; got {norm!r}."
            )


def _require_allocation(allocation: object) -> None:
    if allocation is None:
        raise ValueError(
            "The state is of an attachment that held layers by max_norm, and this one holds the "
            "network by max_lipschitz: attach as the run that saved it did."
        )
    parts = allocation if isinstance(allocation, Mapping) else {}
    numbers = [parts.get(key) for key in _ALLOCATION]
    if not all(isinstance(own, Mapping) and all(map(_is_number, own.values())) for own in numbers):
        raise TypeError(
            f"'allocation' of the state must have numbers by layer as {list(_ALLOCATION)}, got "
            f"{allocation!r}: {_ORIGIN}."
        )


def load_whole(
    states: Mapping[str, Any], own: Mapping[str, Any], load: Callable[[Mapping[str, Any]], None]
) -> None:
    """Load the states of layers; if one of them cannot be, all layers go on as they were.

    What they are at now, their `own`, has the same form, and `load` takes either.

    Raises:
        ValueError: A state is damaged, or of a layer of another size.
    """
    for name, state in states.items():
        why = _unlike(state, own.get(name), "")
        if why:
            raise ValueError(
                f"The state of layer {name!r} cannot be loaded: {why}. It is damaged, or of "
                "another model or other settings: attach as the run that saved it did."
            )
    before = copy.deepcopy(dict(own))
    try:
        load(states)
    except Exception as error:
        load(before)
        if isinstance(error, ValueError):
            raise  # it says what is wrong itself
        raise ValueError(
            f"The states of the layers cannot be loaded: {type(error).__name__}: {error}. They are "
            "damaged, or of another model or other settings: attach as the run that saved them did."
        ) from error


def saved_vectors(saved: Any, shape: Sequence[int]) -> Tensor:
    """Vectors of a state, if each of them has the given shape; there may be any number.

    Raises:
        ValueError: They are something else.
    """
    if not isinstance(saved, Tensor):
        raise ValueError(f"The state has {_kind(saved)} in the place of the vectors of a layer.")
    if tuple(saved.shape[1:]) != tuple(shape) or saved.ndim != len(shape) + 1:
        raise ValueError(
            f"The state has vectors of shape {tuple(saved.shape)}, and the layer needs some of "
            f"shape {tuple(shape)}: it is of another model or other example inputs."
        )
    return saved


def _unlike(saved: Any, own: Any, path: str) -> str:
    """In what a state is not of the form of another; empty where it is."""
    where = f"{path} is" if path else "it is"
    if saved is None or own is None:
        return ""  # not known yet, or no longer
    if isinstance(own, Mapping):
        if not isinstance(saved, Mapping):
            return f"{where} {_kind(saved)}, expected a dict"
        lacks = [key for key in own if key not in saved]
        if lacks:
            return f"{path or 'it'} lacks {lacks}"
        parts = ((saved[key], own[key], f"{path}[{key!r}]") for key in own)
    elif isinstance(own, (list, tuple)):
        if not isinstance(saved, (list, tuple)):
            return f"{where} {_kind(saved)}, expected a list"
        parts = ((a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(saved, own, strict=False)))
    elif isinstance(own, Tensor):
        return _unlike_tensor(saved, own, where)
    else:
        return "" if _is_number(saved) else f"{where} {_kind(saved)}, expected a number"
    return next(filter(None, (_unlike(*part) for part in parts)), "")


def _unlike_tensor(saved: Any, own: Tensor, where: str) -> str:
    if not isinstance(saved, Tensor):
        return f"{where} {_kind(saved)}, expected a tensor"
    if saved.is_complex() != own.is_complex() or saved.layout != torch.strided:
        return f"{where} a tensor of {saved.dtype} ({saved.layout}), expected {own.dtype}"
    # Rows are vectors, of which there may be more or fewer by now.
    rows = 1 if own.ndim > 1 else 0
    if saved.ndim != own.ndim or saved.shape[rows:] != own.shape[rows:]:
        return f"{where} of shape {tuple(saved.shape)}, expected {tuple(own.shape)}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
