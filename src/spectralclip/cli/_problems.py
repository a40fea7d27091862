"""What the command line says when something is wrong: one line that a person can act on."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from spectralclip._common import Problem, file_problems, one_line

__all__ = ["Problem", "file_problems", "listed", "one_line", "raised"]


def raised(error: BaseException) -> str:
    """A foreign error with its type and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    kind, text = type(error).__name__, one_line(error)
    return f"{kind}{place}" if text == kind else f"{kind}: {text}{place}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
