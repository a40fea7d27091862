"""What the top of the page says of one audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spectralclip._common import printable
from spectralclip.report._numbers import at_most, chance, count, is_finite, number, ratio, shape
from spectralclip.report._rows import units

# Settings and facts of the run, in words; others are shown under their own names.
WORDS = {
    "k": "Singular values per layer",
    "values_tol": "Tolerance of singular values",
    "tol": "Width asked of intervals",
    "failure": "Probability of failure allowed",
    "deterministic": "Deterministic bounds only",
    "seed": "Seed",
    "torch": "PyTorch",
    "python": "Python",
    "platform": "Platform",
    "device": "Device",
    "threads": "Threads",
    "seconds": "Seconds",
}


def summary_of(audit: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The head of the page for one audit; `label` tells two of them apart."""
    layers = audit.get("layers") or ()
    standing = [layer for layer, unit in zip(layers, units(layers), strict=True) if unit]
    norms = [layer.get("norm") or {} for layer in standing]
    finite = [
        (norm["upper"], str(layer.get("name") or ""))
        for norm, layer in zip(norms, standing, strict=True)
        if is_finite(norm.get("upper"))
    ]
    largest = max(finite, default=None, key=lambda pair: pair[0])
    return {
        "label": label,
        "model": str(audit.get("model") or "Model"),
        "parameters": count(audit.get("parameters")),
        "inputs": ", ".join(shape(sizes) for sizes in audit.get("inputs") or ()) or "–",
        "created": _moment(audit.get("created")),
        "run": _words(audit.get("settings")) + _words(audit.get("environment")),
        "units": len(standing),
        # Those that are certain to amplify, by more than intervals are usually wide.
        "above": sum((norm.get("lower") or 0) > 1.01 for norm in norms),
        "largest": largest and {"norm": at_most(largest[0]), "name": largest[1]},
        "compensating": [
            str(layer.get("name") or "") for layer in layers if layer.get("compensates")
        ],
        "skipped": _skipped(audit.get("skipped") or {}),
        "lipschitz": _lipschitz(audit.get("lipschitz")),
        "failure": _failure(audit),
        "scores": _scores(audit.get("scores")),
    }


def _lipschitz(bound: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if bound is None:
        return None
    lower, upper, product = bound.get("lower"), bound.get("upper"), bound.get("product")
    gain = ratio(product, upper)
    return {
        "lower": lower,
        "upper": upper,
        "bounded": is_finite(upper),
        "ratio": ratio(upper, lower),
        "product": product,
        "gain": None if gain is None else number(gain),
        "unbounded": [
            {key: str(place.get(key) or "") for key in ("where", "operation", "reason")}
            for place in bound.get("unbounded") or ()
        ],
    }


def _scores(scores: Mapping[str, Any] | None) -> dict[str, str] | None:
    """How much outputs differ, in words; None where it is not known."""
    if scores is None:
        return None
    over = "the example inputs" if scores.get("over") == "example" else "standard normal inputs"
    values = {key: number(scores.get(key)) for key in ("spread", "gain")}
    return {**values, "over": over}


def _failure(audit: Mapping[str, Any]) -> dict[str, str]:
    """The chance that the network's bound is wrong, and that any bound on the page is."""
    bound = audit.get("lipschitz")
    norms = [layer.get("norm") or {} for layer in audit.get("layers") or ()]
    network = (bound or {}).get("failure") or 0.0
    # Probabilities add up; the network's bound may rest on norms that no row shows.
    together = max(network, min(1.0, sum(norm.get("failure") or 0.0 for norm in norms)))
    return {"network": chance(together if bound is None else network), "together": chance(together)}


def _skipped(skipped: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Modules by the reason they were passed over for, the commonest first."""
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        reasons.setdefault(str(reason), []).append(printable(str(name)) or "(the model itself)")
    groups = [{"reason": reason, "names": names} for reason, names in reasons.items()]
    return sorted(groups, key=lambda group: -len(group["names"]))


def _words(values: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return [
        (WORDS.get(key, printable(str(key))), _plain(value))
        for key, value in (values or {}).items()
    ]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)


def _moment(created: object) -> str:
    """An ISO time to the minute, for reading."""
    text = str(created or "")
    return text[:16].replace("T", " ") + " UTC" if len(text) >= 16 and text[10:11] == "T" else text
