"""The methods of the library with the settings that are compared, by the names of the pages."""

from __future__ import annotations

from typing import Any, NamedTuple

from spectralclip import Method
from spectralclip.methods import available, get


class Variant(NamedTuple):
    """A method with settings other than its defaults."""

    method: str
    settings: dict[str, Any]

    def make(self) -> Method:
        return get(self.method)(**self.settings)

    def composes(self) -> bool:
        """Whether it is about compositions, and as its method elsewhere."""
        return self.make().compose != "none"


# Beside its defaults, what a method can be, or what it takes to see it at work in few steps.
FURTHER: dict[str, dict[str, dict[str, Any]]] = {
    "delattre": {
        "penalty": {"use": "penalty"},
    },
    "fast_clip": {
        "every 5 steps": {"lr": 0.1, "every": 5},
        "concat": {"lr": 0.1, "every": 5, "concat": True, "concat_every": 5},
    },
    "sedghi": {"each step, 20 projections": {"every": 1, "projections": 20}},
    "senderovich": {"rank 2": {"every": 1, "tt_rank": 2}},
}


def variants() -> dict[str, Variant]:
    """Each method with its defaults, with what it promises by, and in its further forms."""
    found = {}
    for name in available():
        found[name] = Variant(name, {})
        for promise in get(name).promises:
            words = ", ".join(f"{key} {value}" for key, value in promise.settings.items())
            if words and found[name].make() != get(name)(**promise.settings):
                found[f"{name}, {words}"] = Variant(name, dict(promise.settings))
        for words, settings in FURTHER.get(name, {}).items():
            variant = Variant(name, settings)
            if variant not in found.values():
                found[f"{name}, {words}"] = variant
    return found
