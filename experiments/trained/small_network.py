"""Runs of the small network on MNIST, for the figures that watch its convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.experiment import Record, Scale
from experiments.judging.statistics import summary

LAYER = "conv"
SETTINGS = {
    1: "3x3, reflect",
    2: "3x3, zeros",
    3: "3x3, zeros, stride 2",
    4: "5x5, replicate, stride 2",
}


@dataclass(frozen=True)
class Size:
    """How much training a scale does."""

    dataset: str
    width: int
    epochs: int
    train_images: int | None
    test_images: int | None
    batch: int
    seeds: int


# FastClip takes more than a thousand steps to bring a new convolution down to the target. Small
# batches allow for as many in a short run: what the methods do depends on steps, not on images. No
# period of 50 or 100 divides 303 steps, so that norms are not taken just after a round.
SIZES: dict[Scale, Size] = {
    "smoke": Size("digits", 4, 2, 64, 32, 16, 1),
    "laptop": Size("mnist", 64, 7, 303 * 8, 500, 8, 3),
    # Twice as long: in 7 epochs norms were still on their way down.
    "desk": Size("mnist", 64, 14, 303 * 8, 500, 8, 5),
    "paper": Size("mnist", 64, 120, None, None, 128, 5),
}


def config(
    scale: Scale, *, setting: int, method: str, target: float, seed: int, measure: str
) -> dict[str, Any]:
    """One run; only the convolution is clipped, as in the paper."""
    size = SIZES[scale]
    return {
        "label": f"setting {setting} {method} to {target:g} seed {seed}",
        "dataset": size.dataset,
        "model": "small",
        "width": size.width,
        "batch_norm": True,
        "setting": setting,
        "method": method,
        "max_norm": {LAYER: target},
        "epochs": size.epochs,
        "train_images": size.train_images,
        "test_images": size.test_images,
        "batch": size.batch,
        # The paper does not say how this network is trained; these settings, without weight decay
        # and with batch norm, are those of simple_conv_results.ipynb, the notebook published
        # with its code.
        "optimizer": "sgd",
        "lr": 0.001,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "lr_step": 40,
        "lr_gamma": 0.1,
        "augment": False,
        "seed": seed,
        "attacks": None,
        "measure": measure,
    }


def norms(record: Record, layer: str = LAYER) -> list[float]:
    """The true norm of a layer after each epoch."""
    return [float(epoch["norms"][layer]) for epoch in record.result["epochs"]]


def plus_minus(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over seeds, for a table."""
    return summary(values).written(f".{digits}f", f".{digits}f")
