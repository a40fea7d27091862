"""Names and messages as a person may see them: no character of theirs is obeyed or hidden.

Names of modules can hold any character. Some clear the screen, some turn the reading direction
around, a NUL ends a text for some programs, and half a surrogate pair cannot be written at all.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 400  # characters of a message: torch's list of all backends of an operation has 15,000


def printable(text: str) -> str:
    r"""The text on one line, with what a terminal or a page might obey spelled out.

    Example:
        >>> from spectralclip._common.text import printable
        >>> print(printable("\x1b[2Jlayer\n1\x00"))
        \x1b[2Jlayer\n1\x00
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def missing_package(
    who: str, package: str, extra: str, error: ImportError, otherwise: str = ""
) -> ImportError:
    """The error to raise where an optional package is missing, to be chained to the first one."""
    return ImportError(
        f"{who} needs the package {package!r}, which could not be imported ({error}): "
        f'pip install "spectralclip[{extra}]"{otherwise}',
        name=package,
    )


ITSELF = "the model itself"  # which has no name among its modules


def shown_name(name: str) -> str:
    """The name of a module or chain; words for the model, whose name is empty."""
    return printable(name) or ITSELF


def shown_reason(why: str) -> str:
    """A message, which may have had several lines or pages, on one line."""
    text = printable(" ".join(why.split()))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def in_short(value: object) -> str:
    """A value that was given by mistake: tensors by their shape, all else as it prints, cut."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def some_of(names: Sequence[str], most: int = 4) -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> from spectralclip._common.text import some_of
        >>> some_of(["a", "b", "c"], most=2)
        "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(printable(name)) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
