"""The methods by name: all that `spectralclip.methods` imports."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module

from spectralclip._training import Method


def available() -> list[str]:
    """The names of the methods that `get` knows.

    Example:
        >>> from spectralclip import methods
        >>> "fast_clip" in methods.available()
        True
    """
    return sorted(_methods())


def get(name: str) -> type[Method]:
    """The class of a method by its name; each can be called without arguments.

    Args:
        name: One of `available()`, the name of the file that the method is in.

    Raises:
        ValueError: There is no method of this name.

    Example:
        >>> from spectralclip import methods
        >>> methods.get("clip_batch_norm")()
        ClipBatchNorm()
    """
    known = _methods()
    if not isinstance(name, str):
        raise TypeError(f"name must be one of {sorted(known)}, got {name!r}.")
    if name not in known:
        plain = name.lower().replace("-", "_").replace(" ", "_")
        similar = difflib.get_close_matches(plain, known, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        raise ValueError(f"There is no method {name!r}: known are {sorted(known)}.{hint}")
    return known[name]


def estimators() -> dict[str, Callable[..., float]]:
    """By the name of the method, the estimates of the largest singular value that there are.

    Each is a function of a module and the shape of one input, takes a `generator`, and raises
    `OutsideDomain` for layers that the method is not defined for.

    Example:
        >>> from spectralclip.methods import estimators
        >>> "gouk" in estimators(), "clip_batch_norm" in estimators()
        (True, False)
    """
    found = {name: getattr(kind, "estimate", None) for name, kind in sorted(_methods().items())}
    return {name: estimate for name, estimate in found.items() if callable(estimate)}


def _methods() -> dict[str, type[Method]]:
    """Each by the name of its file."""
    exported = vars(import_module("spectralclip.methods")).values()
    classes = [one for one in exported if isinstance(one, type) and issubclass(one, Method)]
    return {one.__module__.rpartition(".")[2]: one for one in classes}
