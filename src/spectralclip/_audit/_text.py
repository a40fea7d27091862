"""Names of modules as they are shown to a person."""

from __future__ import annotations

from spectralclip._text import ITSELF as ITSELF
from spectralclip._text import printable as printable
from spectralclip._text import shown_name as shown_name
from spectralclip._text import shown_reason as shown_reason
