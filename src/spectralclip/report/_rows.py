"""The rows of the table, with all that is shown once one of them is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spectralclip.report._numbers import (
    MISSING,
    chance,
    count,
    factor,
    interval,
    number,
    ratio,
    shape,
    short,
)

# What is told of a chosen layer, in this order; a row keeps the words alone.
FACTS = [
    "Norm, certified",
    "Certified how",
    "Chance that it fails",
    "Linear part alone",
    "Batch norm alone",
    "Product of the two",
    "Norm of reshaped kernel",
    "Frobenius norm",
    "Stable rank",
    "Input",
    "Output",
    "Parameters",
    "Used",
    "Shares weights with",
    "Held at in training",
    "Share of a step undone",
]

# What an audit has of a layer that is held while it is trained.
HELD = ("max_norm", "pressure")

# Sorts what has no upper end above all that has one.
BEYOND = 1e308

Row = dict[str, Any]


def audit_rows(audit: Mapping[str, Any]) -> list[Row]:
    """One row a layer or chain, in the order of first use."""
    rows: list[Row] = []
    layers = audit.get("layers") or ()
    for layer, unit in zip(layers, units(layers), strict=True):
        row = _row(len(rows), layer, [_side(layer)], unit)
        side, numbers = row["sides"][0], (layer.get("reshaped_norm"), layer.get("stable_rank"))
        parameters = layer.get("parameters")
        held = [layer.get(key) for key in HELD] if is_held(audit) else []
        texts = *map(number, numbers), count(parameters), *map(number, held)
        row["cells"] = [row["name"], side["norm"], *texts]
        keys = *map(short, numbers), parameters, *map(short, held)
        row["keys"] = [row["name"], _end(side), *keys]
        rows.append(row)
    return rows


def is_held(audit: Mapping[str, Any]) -> bool:
    """Whether the audit was made while training held some of the layers."""
    return any(layer.get("max_norm") is not None for layer in audit.get("layers") or ())


def comparison_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Row]:
    """Rows of both audits, matched by role and name; those of one alone are kept."""
    old = {(layer.get("role"), layer.get("name")): layer for layer in before.get("layers") or ()}
    new = {(layer.get("role"), layer.get("name")): layer for layer in after.get("layers") or ()}
    rows: list[Row] = []
    keys = [*new, *(key for key in old if key not in new)]
    standing = units([new.get(key) or old[key] for key in keys])
    for key, unit in zip(keys, standing, strict=True):
        pair = [old.get(key), new.get(key)]
        sides = [None if layer is None else _side(layer) for layer in pair]
        row = _row(len(rows), pair[1] or pair[0] or {}, sides, unit)
        ends = [side["hi"] if side else None for side in sides]
        change = ratio(ends[1], ends[0])
        texts = [side["norm"] if side else MISSING for side in sides]
        row["cells"] = [row["name"], *texts, _change(sides, change)]
        row["keys"] = [row["name"], *map(_end, sides), short(change)]
        rows.append(row)
    return rows


def _row(index: int, layer: Mapping[str, Any], sides: list[Row | None], unit: bool) -> Row:
    return {
        "id": index,
        "name": str(layer.get("name") or "(the model itself)"),
        "role": str(layer.get("role") or "layer"),
        "kind": str(layer.get("kind") or ""),
        "geometry": str(layer.get("geometry") or "").replace("->", "→"),
        "parts": [str(part) for part in layer.get("parts") or ()],
        "unit": unit,
        "compensates": bool(layer.get("compensates")),
        "sides": sides,
    }


def _end(side: Row | None) -> float | None:
    return None if side is None else BEYOND if side["hi"] is None else side["hi"]


def _side(layer: Mapping[str, Any]) -> Row:
    """One audit's word on a layer."""
    norm = layer.get("norm") or {}
    lower, upper = norm.get("lower"), norm.get("upper")
    return {
        "lo": short(lower),
        "hi": short(upper),
        "norm": interval(lower, upper),
        "values": [short(value) for value in layer.get("singular_values") or ()],
        "reshaped": short(layer.get("reshaped_norm")),
        "split": _split(layer),
        "remark": str(layer.get("remark") or ""),
        "facts": _facts(layer, interval(lower, upper)),
    }


def _split(layer: Mapping[str, Any]) -> list[float | None] | None:
    """The norms of the linear part and of the batch norm of a chain that has both."""
    if layer.get("batch_norm") is None or layer.get("linear") is None:
        return None
    return [short(layer["linear"]), short(layer["batch_norm"])]


def _facts(layer: Mapping[str, Any], norm: str) -> list[str | None]:
    linear, batch_norm = layer.get("linear"), layer.get("batch_norm")
    apart = None if linear is None or batch_norm is None else linear * batch_norm
    reshaped, frobenius = layer.get("reshaped_norm"), number(layer.get("frobenius"))
    parameters, uses = layer.get("parameters"), layer.get("uses")
    promise = layer.get("norm") or {}  # of the upper end, and how likely that is to give way
    failure = promise.get("failure")
    return [
        norm,
        *(promise.get("kind"), None if failure is None else chance(failure)),
        *(None if one is None else number(one) for one in (linear, batch_norm, apart, reshaped)),
        frobenius if layer.get("frobenius_is_exact", True) else f"about {frobenius}",
        number(layer.get("stable_rank")),
        shape(layer.get("in_shape")),
        shape(layer.get("out_shape")),
        None if parameters is None else f"{parameters:,}".replace(",", " "),
        None if uses in (None, 1) else f"{uses} times",
        ", ".join(map(str, layer.get("shared") or ())) or None,
        *(None if one is None else number(one) for one in map(layer.get, HELD)),
    ]


def _change(sides: list[Row | None], change: float | None) -> str:
    before, after = sides
    if before is None or after is None:
        return "added" if before is None else "removed"
    if before["lo"] == after["lo"] and before["hi"] == after["hi"]:
        return "same"
    return factor(change)


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
