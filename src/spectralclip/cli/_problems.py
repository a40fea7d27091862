"""What the command line says when something is wrong: one line that a person can act on."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import final

LONGEST = 400  # characters of a foreign message that are shown


@final
class Problem(Exception):
    """Something that the user can put right: what it is, what was expected, what to do."""


def one_line(error: BaseException) -> str:
    """A foreign error's message on one line, or its type where it has none."""
    text = " ".join(str(error).split())
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} ..."
    return text or type(error).__name__


def raised(error: BaseException) -> str:
    """A foreign error with its type and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    text = one_line(error)
    kind = type(error).__name__
    return f"{kind}{place}" if text == kind else f"{kind}: {text}{place}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def cannot(action: str, error: OSError) -> Problem:
    """A file that cannot be read or written, as a problem."""
    return Problem(f"cannot {action} {error.filename}: {error.strerror or one_line(error)}.")
