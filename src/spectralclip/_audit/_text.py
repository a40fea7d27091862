"""Names and reasons as they are shown to a person."""

from __future__ import annotations

ITSELF = "the model itself"  # which has no name among its modules


def printable(text: str) -> str:
    r"""The text on one line, with what a terminal might obey spelled out.

    Names of modules can hold any character, and some of them clear the screen.

    Example:
        >>> from spectralclip._audit._text import printable
        >>> print(printable("\x1b[2Jlayer\n1"))
        \x1b[2Jlayer\n1
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def shown_name(name: str) -> str:
    """The name of a module or chain; words for the model, whose name is empty."""
    return printable(name) or ITSELF


def shown_reason(why: str) -> str:
    """A message, which may have had several lines, on one."""
    return printable(" ".join(why.split()))
