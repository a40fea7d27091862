"""Audits as JSON documents, and back.

The keys are the names of the attributes. Numbers that JSON does not know are null: of what an
audit holds, only the bounds of a network can be infinite.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectralclip._audit.heads import HeadAudit
from spectralclip._audit.layer import LayerAudit
from spectralclip._audit.scores import Scores
from spectralclip._bounds import Interval
from spectralclip._lipschitz import NetworkBound, Step, Unbounded
from spectralclip.report import AUDIT, COMPARISON, VERSION, require_document

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_READERS = {AUDIT: "Audit.from_json", COMPARISON: "AuditComparison.from_json"}


def document_of(format_: str, record: DataclassInstance, version: int = VERSION) -> dict[str, Any]:
    """A record of plain values as a document of the given format."""
    return {"format": format_, "version": version, **_plain(asdict(record))}


def to_text(document: Mapping[str, Any]) -> str:
    """The document as JSON text, which a terminal can show and any file can hold.

    Letters stay as they are. What cannot be printed, which includes half a surrogate pair, is
    written by its number, so that it is the same once it has been read.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else _escaped(line) for line in lines)


def _escaped(line: str) -> str:
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


def _plain(value: Any) -> Any:
    """What JSON has words for: lists for tuples, null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_document(
    source: str | os.PathLike[str] | Mapping[str, Any], format_: str
) -> Mapping[str, Any]:
    """A document of the given format, from JSON text, from the path of a file, or as it is."""
    if isinstance(source, Mapping):
        document, origin = source, "The document"
    else:
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        origin = "The text" if is_text else str(source)
        text = str(source) if is_text else Path(source).read_text(encoding="utf-8")
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{origin} is no JSON ({error}). Expected what Audit.to_json has written; it may "
                "have been cut short."
            ) from error
    require_document(document, origin, *_READERS)
    found = document["format"]
    if found != format_:
        raise ValueError(f"Expected {format_!r}, got {found!r}: read it with {_READERS[found]}.")
    return document


def audit_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the audit that a document describes."""
    try:
        bound = document["lipschitz"]
        return {
            **{key: document[key] for key in ("created", "model", "parameters")},
            **{key: dict(document[key]) for key in ("settings", "environment", "skipped")},
            "inputs": tuple(tuple(shape) for shape in document["inputs"]),
            "layers": tuple(map(_layer, document["layers"])),
            "lipschitz": None if bound is None else _network_bound(bound),
            "scores": _scores(document.get("scores")),
            "heads": tuple(map(_head, document.get("heads", ()))),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The audit does not have the form that docs/audit-schema.md describes: "
            f"{type(error).__name__}: {error}. Audit the model again."
        ) from error


def _layer(entry: Mapping[str, Any]) -> LayerAudit:
    values = _known(LayerAudit, entry)
    _require(values, str, "name", "kind", "geometry", "role", "remark")
    _require(entry["norm"], (int, float), "lower", "upper", "failure")
    for key in ("parts", "in_shape", "out_shape", "shared", "singular_values"):
        values[key] = tuple(values[key])
    return LayerAudit(**{**values, "norm": Interval(**_known(Interval, entry["norm"]))})


def _head(entry: Mapping[str, Any]) -> HeadAudit:
    values = _known(HeadAudit, entry)
    _require(values, str, "name", "layer", "note")
    for key in ("logit", "value"):
        ends = values[key]
        values[key] = None if ends is None else Interval(**_known(Interval, ends))
    return HeadAudit(**values)


def _network_bound(entry: Mapping[str, Any]) -> NetworkBound:
    values = _known(NetworkBound, entry)
    _require(values, (int, float), "lower")
    for key in ("upper", "product"):
        values[key] = _infinite(values[key])
    values["unbounded"] = tuple(Unbounded(**_known(Unbounded, one)) for one in entry["unbounded"])
    values["steps"] = tuple(
        Step(**{**_known(Step, one), **{key: _infinite(one[key]) for key in ("factor", "bound")}})
        for one in entry["steps"]
    )
    return NetworkBound(**{**values, "local_norms": tuple(entry["local_norms"])})


def _scores(entry: Mapping[str, Any] | None) -> Scores | None:
    if entry is None:  # also of documents that were written before there were any
        return None
    _require(entry, (int, float), "spread")
    return Scores(**_known(Scores, entry))


def _require(values: Mapping[str, Any], kind: type | tuple[type, ...], *keys: str) -> None:
    """Raise if one of the entries is of another type."""
    for key in keys:
        if key in values and not isinstance(values[key], kind):
            raise TypeError(f"{key!r} is {values[key]!r:.40}")


def _infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)


def _known(record: type[DataclassInstance], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that the record has attributes for; later versions may add others."""
    return {field.name: entry[field.name] for field in fields(record) if field.name in entry}
