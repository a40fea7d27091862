"""The documents that audits are stored as: which formats there are, and which version is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AUDIT, COMPARISON, VERSION = "spectralclip.audit", "spectralclip.comparison", 2


def require_document(document: Any, origin: str, *formats: str) -> None:
    """Raise unless a document is of one of the formats, and of the version that is read."""
    found = document.get("format") if isinstance(document, Mapping) else type(document).__name__
    if found not in formats:
        raise ValueError(
            f"{origin} has the format {found!r}, expected {' or '.join(map(repr, formats))}: give "
            "what Audit.to_json or AuditComparison.to_json has written."
        )
    if document.get("version") != VERSION:
        raise ValueError(
            f"{origin} has version {document.get('version')!r} of {found}, and this spectralclip "
            f"reads version {VERSION}: audit the model again, or install the version that wrote it."
        )
