"""For the documentation's site: what stands below `Example:` in a docstring is code.

Griffe, which reads the docstrings for mkdocstrings, knows a section of examples by the name
`Examples:` only, and would take `>>>` for a quotation elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

HEADING = re.compile(r"^Example:$", re.MULTILINE)


class OneExample(griffe.Extension):
    """Reads `Example:` as `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub("Examples:", obj.docstring.value)
