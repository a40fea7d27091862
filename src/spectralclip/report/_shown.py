"""A document with every text in it as a page may show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spectralclip._common import printable, shown_reason

# What holds sentences, in which a line break is a space; everything else is a name.
_SENTENCES = ("reason", "note", "remark", "skipped")


def shown(value: Any, key: str = "") -> Any:
    r"""The same value, with the texts inside it spelled out where they cannot be printed.

    Keys stay: two of them might look the same then.

    Example:
        >>> from spectralclip.report._shown import shown
        >>> print(shown({"layers": [{"name": "a" + chr(0)}]})["layers"][0]["name"])
        a\x00
    """
    if isinstance(value, str):
        return shown_reason(value) if key in _SENTENCES else printable(value)
    if isinstance(value, Mapping):
        sentences = key in _SENTENCES
        return {name: shown(one, key if sentences else str(name)) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(one, key) for one in value]
    return value
