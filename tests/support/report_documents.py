"""Documents for the tests of the report, made up by rule so that any size is at hand."""

from __future__ import annotations

import json
import math
import random
from typing import Any

NASTY = "</script><img src=x onerror=\"document.title='hacked'\">&lt;{{7*7}}'`"


def layer(
    generator: random.Random, name: str, kind: str, norm: float, **others: Any
) -> dict[str, Any]:
    values = [norm * math.exp(-0.08 * index * generator.random()) for index in range(10)]
    values.sort(reverse=True)
    convolution = kind.startswith("Conv2d")
    document = {
        "name": name,
        "role": "layer",
        "parts": [name],
        "kind": kind,
        "geometry": "64 -> 64, 3x3, padding 1 zeros" if convolution else "64 channels",
        "in_shape": [64, 32, 32],
        "out_shape": [64, 32, 32],
        "uses": 1,
        "parameters": 36864 if convolution else 128,
        "shared": [],
        "norm": {
            "lower": values[0],
            "upper": values[0] * (1.008 if convolution else 1.0),
            "kind": "probabilistic" if convolution else "exact",
            "failure": 1e-6 if convolution else 0.0,
        },
        "singular_values": values,
        "frobenius": 40.0 * norm,
        "frobenius_is_exact": True,
        "stable_rank": 1600.0 * generator.random(),
        "reshaped_norm": norm / 3 if convolution else None,
        "batch_norm": None,
        "linear": None,
        "compensates": False,
        "remark": f"Lengthens some differences {norm:.2f} times.",
    }
    return document | others


def audit(
    rows: int = 42, *, seed: int = 0, scale: float = 1.0, name: str = "ResNet"
) -> dict[str, Any]:
    """An audit of about `rows` rows: convolutions, batch norms, and their chains, by turns."""
    generator = random.Random(seed)
    layers: list[dict[str, Any]] = []
    for block in range((rows + 2) // 3):
        conv, norm = f"block{block}.conv", f"block{block}.bn"
        linear, batch_norm = (scale * math.exp(generator.gauss(0.4, 0.6)) for _ in range(2))
        both = linear * batch_norm * generator.uniform(0.35, 0.98)
        layers.append(layer(generator, conv, "Conv2d", linear))
        layers.append(layer(generator, norm, "BatchNorm2d", batch_norm))
        chain = layer(generator, f"{conv}+{norm}", "Conv2d + BatchNorm2d", both)
        chain |= {"role": "chain", "parts": [conv, norm], "linear": linear}
        chain |= {"batch_norm": batch_norm, "compensates": both < linear * batch_norm / 2}
        layers.append(chain)
    layers = layers[:rows]
    return {
        "format": "spectralclip.audit",
        "version": 2,
        "created": "2025-01-31T12:34:56+00:00",
        "model": name,
        "parameters": sum(row["parameters"] for row in layers),
        "inputs": [[2, 3, 32, 32]],
        "settings": {"k": 10, "tol": 0.01, "failure": 1e-6, "deterministic": False, "seed": 0},
        "environment": {"spectralclip": "0.1.0", "torch": "2.13.0", "seconds": 12.5},
        "layers": layers,
        "skipped": {"pool": "not affine", "head.act": "not affine"},
        "lipschitz": lipschitz(layers),
    }


def lipschitz(layers: list[dict[str, Any]]) -> dict[str, Any]:
    steps, bound, product = [], 1.0, 1.0
    for row in layers:
        if row["role"] == "layer":
            product = min(product * row["norm"]["upper"], 1e200)
            continue
        bound = min(bound * row["norm"]["upper"], 1e200)
        step = {"where": row["name"], "operation": row["kind"], "factor": row["norm"]["upper"]}
        steps.append(step | {"bound": bound, "note": ""})
        steps.append({"where": "relu", "operation": "relu", "factor": 1.0, "bound": bound})
    return {
        "lower": 2.5,
        "upper": bound,
        "failure": 1e-5,
        "product": product,
        "unbounded": [],
        "steps": [{"note": "a constant of the activation"} | step for step in steps],
        "local_norms": [2.5, 1.9],
    }


def comparison(rows: int = 42) -> dict[str, Any]:
    return {
        "format": "spectralclip.comparison",
        "version": 2,
        "before": audit(rows, seed=0),
        "after": audit(rows, seed=1, scale=0.5),
    }


def nasty() -> dict[str, Any]:
    """An audit whose every text tries to become markup."""

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoil(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [spoil(inner) for inner in value]
        return f"{value}{NASTY}" if isinstance(value, str) else value

    document = audit(12)
    document["lipschitz"]["unbounded"] = [
        {"where": "attention", "operation": "softmax", "reason": "not supported"}
    ]
    kept = {"format": document["format"]}
    roles = [row["role"] for row in document["layers"]]
    document = spoil(document) | kept
    document["skipped"] = {f"pool{NASTY}": f"not affine{NASTY}"}
    document["environment"] = {f"tool{NASTY}": NASTY}
    for row, role in zip(document["layers"], roles, strict=True):
        row["role"] = role
    return document


def holes() -> dict[str, Any]:
    """An audit with every optional value missing and nothing bounded."""
    document: dict[str, Any] = json.loads(json.dumps(audit(9)))
    for row in document["layers"][::2]:
        row["norm"]["upper"] = None
        for key in ("frobenius", "stable_rank", "reshaped_norm", "in_shape", "out_shape"):
            row[key] = None
        row["singular_values"] = []
        row["remark"] = ""
    document["layers"][1]["norm"] = {"lower": 0.0, "upper": 0.0, "kind": "exact", "failure": 0.0}
    document["layers"][1]["singular_values"] = [0.0]
    bound = document["lipschitz"]
    bound |= {"upper": None, "product": None, "local_norms": []}
    bound["unbounded"] = [{"where": "", "operation": "softmax", "reason": "attention"}]
    for step in bound["steps"][2:]:
        step |= {"factor": None, "bound": None}
    return document
