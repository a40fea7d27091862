"""The compared methods by name, with the settings of the paper's experiments.

A name stands for all that is attached together. "+bn" behind it adds the clamp of batch norms, as
in "gouk+bn". Settings behind a colon replace those of the paper, as in "senderovich:every=10": for
runs so short that a method with a period of hundreds of steps would never come to its first round.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from spectralclip import Method, methods

WITH_BATCH_NORM = "+bn"


def _of_library(name: str, **settings: Any) -> Callable[[bool], Method]:
    return lambda batch_norm: methods.get(name)(**settings)


# Each is made for a network with batch norms, or for one without.
_COMPARED: dict[str, Callable[[bool], Method]] = {
    "miyato": _of_library("miyato", power_iterations=1),
    # Batch norms are clamped by "+bn" alone, so that methods differ in what they do to layers.
    "gouk": _of_library("gouk", power_iterations=5, batch_norm=False),
    "farnia": _of_library("farnia"),
    "senderovich": _of_library("senderovich", every=100),
    "delattre": _of_library("delattre", use="penalty", iterations=6, weight=0.1),
    "fast_clip": lambda batch_norm: methods.FastClip.published(batch_norm),
    "fast_clip_printed": lambda batch_norm: methods.FastClip(),
    "fast_clip_concat": lambda batch_norm: methods.FastClip.published(batch_norm, concat=True),
    "spectral_clip": lambda batch_norm: methods.SpectralClip(),
    "spectral_clip_conv_bn": lambda batch_norm: methods.SpectralClip(compose="conv_bn"),
}
_OURS = ("spectral_clip", "spectral_clip_conv_bn")


def available() -> list[str]:
    """The names of what the paper compares and ours; `get` knows the library's others as well."""
    return ["none", *_COMPARED]


def is_ours(name: str) -> bool:
    """Whether a run ends with our own clipping of the finished model."""
    return _parts(name)[0] in _OURS


def get(name: str, *, batch_norm: bool) -> tuple[Method, ...]:
    """The methods that a name stands for, to be attached in this order.

    Args:
        name: One of `available()`, or of the library's methods; with settings of one's own behind
            a colon, and "+bn" at the end for the clamp of batch norms.
        batch_norm: Whether the network has batch norms, on which FastClip's settings depend.

    Raises:
        ValueError: There is no such method or setting, or no batch norm to clamp.

    Example:
        >>> from experiments.methods import get
        >>> get("miyato+bn", batch_norm=True)
        (Miyato(power_iterations=1), ClipBatchNorm())
        >>> get("senderovich:every=10", batch_norm=False)
        (Senderovich(every=10, tt_rank=None),)
    """
    base, settings, clamp = _parts(name)
    if clamp and not batch_norm:
        raise ValueError(
            f"method {name!r} clamps batch norms, and the network has none: use {base!r}, or "
            "batch_norm=True."
        )
    made = () if base == "none" else (_with_settings(name, _made(base, batch_norm), settings),)
    if base == "none" and settings:
        raise ValueError(f"method {name!r} has settings, but 'none' takes none: leave them out.")
    return (*made, methods.ClipBatchNorm()) if clamp else made


def _parts(name: str) -> tuple[str, str, bool]:
    """The name itself, the settings behind it, and whether batch norms are clamped."""
    if not isinstance(name, str):
        raise ValueError(f"method must be a name such as {available()}, got {name!r}.")
    base, _, settings = name.removesuffix(WITH_BATCH_NORM).partition(":")
    return base, settings, name.endswith(WITH_BATCH_NORM)


def _made(base: str, batch_norm: bool) -> Method:
    if base in _COMPARED:
        return _COMPARED[base](batch_norm)
    if base in methods.available():
        return methods.get(base)()
    known = sorted({*available(), *methods.available()})
    raise ValueError(f"there is no method {base!r}: known are {', '.join(known)}.")


def _with_settings(name: str, method: Method, settings: str) -> Method:
    """The method with some settings replaced, given as "key=value,key=value"."""
    if not settings:
        return method
    known = [each.name for each in dataclasses.fields(method)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for setting in settings.split(","):
        key, _, value = setting.partition("=")
        if key not in known:
            raise ValueError(f"method {name!r} has no setting {key!r}: known are {known}.")
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(
                f"setting {key!r} of method {name!r} must be a value as JSON writes it, such as "
                f"10, 0.1, true or null, got {value!r}."
            ) from None
    return dataclasses.replace(method, **values)  # type: ignore[type-var]
