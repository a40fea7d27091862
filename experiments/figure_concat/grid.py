"""The runs: ResNet-18 with each way to treat its batch norms.

Where trainings are long, the figure reads those of the tables, which have all that it needs.
"""

from __future__ import annotations

from typing import Any

from experiments.accuracy.grid import scaled_recipe
from experiments.experiment import Config, Scale
from experiments.trained.resnet import CONCAT, METHODS

# The paper's 500 steps between two rounds on a composition are more than a short run has. Its
# experiments went down to 100.
SHORT = "fast_clip_concat:concat_every=100"
SHARED: tuple[Scale, ...] = ("desk", "paper")


def grid(scale: Scale) -> list[Config]:
    """ResNet-18 on CIFAR-10, with each way to deal with batch norms; none where runs are shared."""
    if scale in SHARED:
        return []
    sizes: dict[Scale, dict[str, Any]] = {
        "smoke": {"dataset": "synthetic", "width": 2, "epochs": 2, "train_images": 16, "batch": 8},
        "laptop": {
            "dataset": "cifar10",
            "width": 8,
            "epochs": 5,
            "train_images": 97 * 32,  # see the tables: no round falls on the end of an epoch
            "batch": 32,
        },
    }
    seeds = {"smoke": 1, "laptop": 3}[scale]
    return [
        _config(SHORT if method == CONCAT else method, seed, sizes[scale])
        for method in METHODS
        for seed in range(seeds)
    ]


def _config(method: str, seed: int, size: dict[str, Any]) -> Config:
    images = size.get("train_images")
    return {
        "label": f"{method.partition(':')[0]} seed {seed}",
        "model": "resnet18",
        "batch_norm": True,
        "setting": None,
        "method": method,
        "max_norm": 1.0,
        "train_images": None,
        "test_images": None if images is None else min(images, 1000),
        **scaled_recipe(size["dataset"], epochs=size["epochs"], batch=size["batch"]),
        "seed": seed,
        "attacks": None,
        "measure": "compositions",
        **size,
    }
