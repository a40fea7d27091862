"""Records of figures as they could be, for tests of what is said and judged of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from experiments import (
    figure_circulant_error,
    figure_concat,
    figure_powerqr_time,
)
from experiments.experiment import Config, Record, Scale
from experiments.figure_circulant_error.errors import PADDINGS
from experiments.figure_compensation.grid import METHODS as COMPENSATED
from experiments.figure_compensation.grid import TARGETS
from experiments.figure_powerqr_time.run import NAMES
from experiments.figure_simple_clip.grid import METHODS as SIMPLE_METHODS
from experiments.trained import small_network
from experiments.trained.resnet import METHODS

SEEDS = 3


def record(name: str, config: Config, result: dict[str, Any], timing: Any = None) -> Record:
    return Record(name, "made-up", "laptop", config, result, {"timing": timing})


def lost(made: Record) -> Record:
    """The same run, had it diverged."""
    return replace(made, result={"diverged": "the loss is nan at epoch 1"}, run={"timing": None})


def jitter(seed: int) -> float:
    """Seeds differ by a thousandth."""
    return 1 + 1e-3 * seed


def small(
    name: str, setting: int, method: str, target: float, seed: int, norms: dict[str, float]
) -> Record:
    config = small_network.config(
        "laptop", setting=setting, method=method, target=target, seed=seed, measure="layers"
    )
    found = {layer: norm * jitter(seed) for layer, norm in norms.items()}
    epochs = [{"epoch": 1 + epoch, "train_accuracy": 0.9, "norms": found} for epoch in range(4)]
    result = {"epochs": epochs, "final_norms": {"conv": 1.0}, "layers": list(norms)}
    return record(name, config, result)


def simple(seeds: int = SEEDS, **norms: float) -> list[Record]:
    """All methods at 2 but for both FastClips and ours, or as given."""
    usual = {"fast_clip": 1.05, "fast_clip_printed": 1.05, "spectral_clip": 1.004}
    return [
        small("figure_simple_clip", setting, method, 1.0, seed, {"conv": norm})
        for setting in range(1, 5)
        for method in SIMPLE_METHODS
        for norm in [norms.get(method, usual.get(method, 2.0))]
        for seed in range(seeds)
    ]


def compensation(
    batch_norm: float = -0.8, both: float = 0.2, factor: float = 5.0, seeds: int = SEEDS
) -> list[Record]:
    """Norms that go as powers of the target, and ResNets with a factor between conv and both."""
    found = [
        small(
            "figure_compensation",
            2,
            method,
            target,
            seed,
            {
                "conv": target,
                "bn": target ** (batch_norm * jitter(seed)),
                "conv+bn": target ** (both * jitter(seed)),
            },
        )
        for method in COMPENSATED
        for target in TARGETS
        for seed in range(seeds)
    ]
    return [*found, *concat(both=factor, seeds=seeds)]


def concat(
    *,
    conv: float = 1.02,
    batch_norm: float = 8.0,
    both: float = 5.0,
    concat_both: Sequence[float] = (4.0, 2.0),
    accuracies: Sequence[float] = (0.6, 0.601, 0.4),
    seeds: int = SEEDS,
) -> list[Record]:
    """ResNets of two layers and two epochs; accuracies of FastClip, -concat and with the clamp."""
    found = []
    for short in figure_concat.grid("laptop"):
        config = {**short, "epochs": 20}  # enough of them for a contradiction
        seed, method = config["seed"], config["method"].partition(":")[0]
        if seed >= seeds:
            continue
        place = METHODS.index(method)
        together = concat_both if method == "fast_clip_concat" else (both, both)
        epochs: list[dict[str, Any]] = [
            {
                "epoch": epoch + 1,
                "train_accuracy": (*accuracies, 0.6)[place] * jitter(seed),
                "norms": {
                    f"{layer}{part}": norm * jitter(seed)
                    for layer in "ab"
                    for part, norm in (
                        ("", conv),
                        ("n", batch_norm),
                        (f"+{layer}n", together[epoch]),
                    )
                },
            }
            for epoch in range(2)
        ]
        layers = list(epochs[0]["norms"])
        found.append(record("figure_concat", config, {"epochs": epochs, "layers": layers}))
    return found


def circulant(
    error: Callable[[int, int, int], float] = lambda kernel, channels, index: (
        0.01 * kernel * channels
    ),
    circular: float = 1e-6,
    strided: float = 3.0,
    filters: int = 20,
    gap: float = 0.5,
    scale: Scale = "laptop",
) -> list[Record]:
    """Errors by kernel, channels and index; for circular padding; at stride 2; and of the bound."""
    found = []
    for config in figure_circulant_error.grid(scale):
        kernel, channels, (first, last) = config["kernel"], config["channels"], config["filters"]
        indices = range(first, min(last, filters))
        if not indices:
            continue
        off = [error(kernel, channels, index) * jitter(index % 3) for index in indices]
        true: dict[str, list[float]] = {}
        for padding in PADDINGS:
            plain = [circular if padding == "circular" else one for one in off]
            true[f"{padding} 1"] = [10 - one for one in plain]
            true[f"{padding} 2"] = [10 - one * strided - 1e-3 * (strided - 1) for one in plain]
        size = [10.0 for _ in indices]
        result = {
            "true": true,
            "circulant": {"1": size, "2": size},
            "gram": [one + gap for one in size],
        }
        config = {**config, "filters": [first, first + len(indices)]}
        made = record("figure_circulant_error", config, {**result, "largest_residual": 1e-6})
        found.append(made)
    return found


def times(
    *, share: float = 1.0, beside: int | None = 0, seeds: int = SEEDS, **seconds: float
) -> list[Record]:
    """Seconds for each k, by method."""
    usual = {"repeated": 3.0, "deflated": 4.0, "power_qr": 1.0, "ours": 0.2, "plain": 0.4} | seconds
    order = ("repeated", "deflated", "power_qr", "ours", "plain")
    found = []
    for config in figure_powerqr_time.grid("laptop"):
        if config["seed"] >= seeds:
            continue
        scaled = {
            name: config["k"] * usual[key] * jitter(config["seed"] * (1 + place))
            for place, (key, name) in enumerate(zip(order, NAMES, strict=True))
        }
        timing = {
            "seconds": scaled,
            "core_shares": dict.fromkeys(NAMES, share),
            "threads": 1,
            "cells_beside": beside,
        }
        result = {
            "num_matvecs": dict.fromkeys(NAMES, 100 * config["k"]),
            "errors": dict.fromkeys(NAMES[1:], 1e-2),
            "attempts": dict.fromkeys(NAMES[3:], 1),
            "threads": 1,
        }
        found.append(record("figure_powerqr_time", config, result, timing))
    return found


MADE_UP: dict[str, Callable[[], list[Record]]] = {
    "figure_simple_clip": simple,
    "figure_compensation": compensation,
    "figure_concat": concat,
    "figure_circulant_error": circulant,
    "figure_powerqr_time": times,
}
