"""What a method says of a setting that it does not have."""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

_Self = TypeVar("_Self", bound="NamedSettings")

# Slips for what `attach` takes beside the method, and what it is called there.
_OF_ATTACH = {
    **dict.fromkeys(("max_norm", "bound", "max_sigma", "norm", "c", "target"), "max_norm"),
    **{
        name: name for name in ("model", "optimizer", "example_inputs", "schedule", "pairs", "seed")
    },
}


class NamedSettings:
    """The base of methods: those that are dataclasses refuse unknown settings with a remedy."""

    def __new__(cls: type[_Self], *args: Any, **settings: Any) -> _Self:
        """Check the names alone; values are the business of the method.

        Raises:
            TypeError: A setting is unknown.
        """
        bare = cls.__init__ is object.__init__
        if bare and args:
            raise TypeError(f"{cls.__name__}() has no settings, got {args!r}.")
        if bare or is_dataclass(cls):
            known: list[str] = [] if bare else [one.name for one in fields(cls) if one.init]
            for name in settings:
                if name not in known:
                    raise TypeError(_advice(cls.__name__, name, settings[name], known))
        return super().__new__(cls)


def _advice(method: str, name: str, value: object, known: list[str]) -> str:
    has = f"it has {', '.join(known)}" if known else "it has none"
    text = f"{method} has no setting {name!r}: {has}."
    if name in _OF_ATTACH:
        there = _OF_ATTACH[name]
        what = "The bound" if there == "max_norm" else f"{there!r}"
        given = f"{value!r}" if isinstance(value, (int, float)) else "..."
        return f"{text} {what} goes to attach: attach(..., method={method}(), {there}={given})."
    similar = difflib.get_close_matches(name, known, n=1)
    return f"{text} Did you mean {similar[0]!r}?" if similar else text
