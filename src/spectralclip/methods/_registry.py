"""The methods by name. A new one is a file of its own, and a line here."""

from __future__ import annotations

import difflib
from importlib import import_module

from spectralclip._train import Method

_METHODS = {
    "clip_batch_norm": "ClipBatchNorm",
    "fast_clip": "FastClip",
    "spectral_clip": "SpectralClip",
}


def available() -> list[str]:
    """The names of the methods that `get` knows.

    Example:
        >>> from spectralclip import methods
        >>> "fast_clip" in methods.available()
        True
    """
    return sorted(_METHODS)


def get(name: str) -> type[Method]:
    """A method by its name. Each can be made without arguments.

    Args:
        name: One of `available()`, the name of the file that the method is in.

    Returns:
        The class, to be called for a method with its default settings.

    Raises:
        ValueError: There is no method of this name.

    Example:
        >>> from spectralclip import methods
        >>> methods.get("clip_batch_norm")()
        ClipBatchNorm()
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be one of {available()}, got {name!r}.")
    if name not in _METHODS:
        plain = name.lower().replace("-", "_").replace(" ", "_")
        similar = difflib.get_close_matches(plain, _METHODS, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        raise ValueError(f"There is no method {name!r}: known are {available()}.{hint}")
    module = import_module(f"spectralclip.methods.{name}")
    method: type[Method] = getattr(module, _METHODS[name])
    return method
