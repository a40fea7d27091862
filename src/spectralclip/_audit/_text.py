"""Names of modules as they are shown to a person."""

from __future__ import annotations

from spectralclip._text import printable as printable
from spectralclip._text import shown_reason as shown_reason

ITSELF = "the model itself"  # which has no name among its modules


def shown_name(name: str) -> str:
    """The name of a module or chain; words for the model, whose name is empty."""
    return printable(name) or ITSELF
