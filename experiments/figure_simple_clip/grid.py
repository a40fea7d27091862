"""The runs: every method in four settings of one convolution."""

from __future__ import annotations

from experiments.accuracy.grid import METHODS as OF_TABLES
from experiments.experiment import Config, Scale
from experiments.trained import small_network
from experiments.trained.small_network import SETTINGS

OURS = "spectral_clip"
METHODS = (*OF_TABLES[:-1], "fast_clip_printed", OURS)
TARGET = 1.0


def grid(scale: Scale) -> list[Config]:
    """Every setting with every method, and several seeds."""
    return [
        small_network.config(
            scale, setting=setting, method=method, target=TARGET, seed=seed, measure="layers"
        )
        for setting in SETTINGS
        for method in METHODS
        for seed in range(small_network.SIZES[scale].seeds)
    ]
