"""What the page shows, worked out from the document: plain values, already in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spectralclip._common import printable, shown_reason
from spectralclip.report._document import AUDIT, COMPARISON, require_document
from spectralclip.report._heads import head_grids
from spectralclip.report._numbers import at_most, is_finite, short
from spectralclip.report._rows import FACTS, audit_rows, comparison_rows, is_held
from spectralclip.report._summary import summary_of

# Heading, what it means, and whether a phone has no room for it.
_COLUMNS = (
    ("Layer", "Name, kind and geometry", False),
    ("Norm", "Certified interval of the largest singular value", False),
    (
        "Reshaped",
        "What torch.nn.utils.spectral_norm would see: the norm of the reshaped kernel",
        True,
    ),
    ("Stable rank", "Squared Frobenius norm over squared norm", True),
    ("Parameters", "Numbers the layer learns", True),
)
_COLUMNS_HELD = (
    ("Held at", "The bound at which training holds the layer", True),
    ("Pressure", "The share of a step that clipping undoes: near 1, the layer needs more", False),
)
_COLUMNS_OF_TWO = (
    _COLUMNS[0],
    ("Before", "Certified interval of the norm before", False),
    ("After", "Certified interval of the norm after", False),
    ("Change", "Upper end after, over upper end before", False),
)


def view_of(document: Mapping[str, Any], title: str | None = None) -> dict[str, Any]:
    """Everything the template and the scripts need, from an audit or a comparison."""
    require_document(document, "The document", AUDIT, COMPARISON)
    document = shown(document)
    if document["format"] == AUDIT:
        sides, names = [document], ["audit"]
    else:
        sides, names = [document["before"], document["after"]], ["before", "after"]
        for side in sides:
            require_document(side, "A part of the comparison", AUDIT)
    rows = audit_rows(sides[0]) if len(sides) == 1 else comparison_rows(*sides)
    summaries = [summary_of(side, name) for side, name in zip(sides, names, strict=True)]
    return {
        "kind": "audit" if len(sides) == 1 else "comparison",
        "title": printable(title or _title(sides)),
        "sides": summaries,
        "roles": {"layer", "chain"} <= {row["role"] for row in rows},
        # Those with a batch norm in them.
        "chains": sum(any(side and side["split"] for side in row["sides"]) for row in rows),
        "heads": [
            {"label": name, "grids": grids}
            for side, name in zip(sides, names, strict=True)
            if (grids := head_grids(side))
        ],
        "has_steps": any(_steps(side) for side in sides),
        "data": {
            "sides": names,
            "columns": _columns(sides),
            "facts": FACTS,
            "rows": rows,
            "ranges": [_range(side) for side in sides],
            "steps": [_steps(side) for side in sides],
        },
    }


def _title(sides: list[Mapping[str, Any]]) -> str:
    names = [str(side.get("model") or "Model") for side in sides]
    return names[0] if len(set(names)) == 1 else " → ".join(names)


def _columns(sides: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table's columns; those that are wide are left out on a phone."""
    one = _COLUMNS + (_COLUMNS_HELD if is_held(sides[0]) else ())
    columns = _COLUMNS_OF_TWO if len(sides) == 2 else one
    return [dict(zip(("label", "hint", "wide"), one, strict=True)) for one in columns]


def _range(audit: Mapping[str, Any]) -> dict[str, Any] | None:
    """The network's interval, for the chart of where the constant can lie."""
    bound = audit.get("lipschitz")
    if not bound:
        return None
    return {
        "lower": short(bound.get("lower")),
        "upper": short(bound.get("upper")),
        "product": short(bound.get("product")),
        "local": [short(value) for value in bound.get("local_norms") or () if is_finite(value)],
    }


def _steps(audit: Mapping[str, Any]) -> list[list[Any]]:
    """The trail of rules: [where, operation, factor and bound in words, bound, note]."""
    steps = (audit.get("lipschitz") or {}).get("steps") or ()
    return [
        [
            str(step.get("where") or ""),
            str(step.get("operation") or ""),
            at_most(step.get("factor")),
            at_most(step.get("bound")),
            short(step.get("bound")),
            str(step.get("note") or ""),
        ]
        for step in steps
    ]


# What holds sentences, in which a line break is a space; everything else is a name.
_SENTENCES = ("reason", "note", "remark", "skipped")


def shown(value: Any, key: str = "") -> Any:
    """The same value, with the texts inside it spelled out where they cannot be printed.

    Keys stay: two of them might look the same then.
    """
    if isinstance(value, str):
        return shown_reason(value) if key in _SENTENCES else printable(value)
    if isinstance(value, Mapping):
        sentences = key in _SENTENCES
        return {name: shown(one, key if sentences else str(name)) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(one, key) for one in value]
    return value
