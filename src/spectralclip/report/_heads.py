"""Attention heads as grids, a row for each layer: how large their logits and outputs can get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spectralclip.report._numbers import MISSING, at_most, interval, is_finite

_ABOUT = {
    "logit": "Logits: the norm of the product of the query and key matrices, with its scale",
    "value": "Values: the norm of the product of the output and value matrices",
}


def head_grids(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One grid for logits and one for values; none for a model without heads."""
    heads = audit.get("heads") or ()
    if not heads:
        return []
    return [_grid(heads, about, title) for about, title in _ABOUT.items()]


def _grid(heads: Any, about: str, title: str) -> dict[str, Any]:
    uppers = [_upper(head, about) for head in heads]
    largest = max((upper for upper in uppers if upper is not None), default=0.0)
    rows: dict[str, list[dict[str, Any]]] = {}
    for head, upper in zip(heads, uppers, strict=True):
        ends = head.get(about) or {}
        text = MISSING if upper is None else at_most(upper)
        told = str(head.get("note") or "") if upper is None else _told(ends)
        share = 0.0 if upper is None or not largest else upper / largest
        cell = {"text": text, "share": f"{share:.3f}", "title": f"{head.get('name')}: {told}"}
        rows.setdefault(str(head.get("layer") or "(the model itself)"), []).append(cell)
    columns = max(map(len, rows.values()))
    return {
        "title": title,
        "columns": list(range(columns)),
        "rows": [{"name": name, "cells": cells} for name, cells in rows.items()],
    }


def _told(ends: Mapping[str, Any]) -> str:
    return f"{interval(ends.get('lower'), ends.get('upper'))} ({ends.get('kind')})"


def _upper(head: Mapping[str, Any], about: str) -> float | None:
    upper = (head.get(about) or {}).get("upper")
    return float(upper) if is_finite(upper) else None
