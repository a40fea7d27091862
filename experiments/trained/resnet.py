"""Runs of ResNet-18 in which batch norms are watched, and what is read off them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.accuracy.grid import row_of
from experiments.experiment import Record
from experiments.judging.verdicts import select
from experiments.trained import trained

PLAIN, CONCAT, CLAMPED, OURS = (
    "fast_clip",
    "fast_clip_concat",
    "fast_clip+bn",
    "spectral_clip_conv_bn",
)
METHODS = (PLAIN, CONCAT, CLAMPED, OURS)
FIGURE = "figure_concat"  # whose runs these are, where it has some of its own
PARTS = ("convolution", "batch norm", "both together")


def watched(records: Sequence[Record]) -> list[Record]:
    """Runs of ResNet-18 on CIFAR-10 whose batch norms were watched.

    Those of the figure itself; where it has none, those of the tables, of which it needs some.
    """
    own = [record for record in records if record.experiment == FIGURE]
    wanted = {"model": "resnet18", "batch_norm": True, "measure": "compositions"}
    return own or [r for r in select(records, **wanted) if row_of(r.config) in METHODS]


def of(records: Sequence[Record], method: str) -> list[Record]:
    """Runs of a method, whatever its settings, that came to their end."""
    return [r for r in trained(watched(records)) if row_of(r.config) == method]


def compositions(record: Record) -> list[str]:
    """The convolutions that a batch norm follows, each with it, by their common name."""
    return [name for name in record.result["layers"] if name.count("+") == 1]


def parts(name: str) -> tuple[str, str, str]:
    """The names of convolution, batch norm and both together, from the last."""
    first, second = name.split("+")
    return first, second, name


def largest(record: Record, place: int, epoch: int = -1) -> float:
    """The largest norm after an epoch of the convolutions (0), the batch norms (1), or both (2)."""
    found = record.result["epochs"][epoch]["norms"]
    norms = [float(found[parts(name)[place]]) for name in compositions(record)]
    return max(norms, default=math.nan)


def accuracy(record: Record) -> float:
    """On the training images, in the last epoch."""
    return float(record.result["epochs"][-1]["train_accuracy"])
