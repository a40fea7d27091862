"""The runs: a convolution, and how many of its singular values are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import Config, Scale

COUNTS = (1, 2, 5, 10, 20, 50, 100)  # at the least


def grid(scale: Scale) -> list[Config]:
    """A cell for each k and seed: all methods one after the other, on the same layer."""
    counts: Sequence[int] = COUNTS
    sizes: dict[str, float] = {"channels": 32, "side": 32, "iterations": 100}
    seeds = 10 if scale == "desk" else 5
    if scale == "smoke":
        counts, seeds, sizes = (1, 10), 2, {"channels": 4, "side": 8, "iterations": 10}
    if scale == "paper":
        counts = (1, 2, 5, *range(10, 101, 10))
    finer = {"ladder": 1.25, "repeats": 3} if scale in ("desk", "paper") else {}
    sizes |= finer
    return [
        {"label": f"k {k} seed {seed}", "k": k, "seed": seed, "kernel": 3, **sizes, "alone": True}
        for k in counts
        for seed in range(seeds)
    ]
