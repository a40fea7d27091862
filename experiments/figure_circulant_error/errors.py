"""The errors of the circulant-error figure, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from experiments.experiment import Record

Padding = Literal["zeros", "reflect", "replicate", "circular"]
PADDINGS: tuple[Padding, ...] = ("zeros", "reflect", "replicate", "circular")
KERNELS = (3, 5, 7)
# The paper names neither the channels nor the image of this figure. The image is that of its timing
# figure; runs of the most channels take as long as all others together, and are for clusters.
CHANNELS = (1, 2, 4, 8, 16, 32)
MORE_CHANNELS = (64,)
CIRCULANT, GRAM = "Fourier transform (Sedghi, Senderovich)", "Gram iteration (Delattre)"


@dataclass(frozen=True)
class Error:
    """How far one estimate of one filter is off."""

    kernel: int
    channels: int
    index: int
    padding: str
    stride: int
    estimate: str
    true: float
    error: float


def errors(records: Sequence[Record]) -> Iterator[Error]:
    """All of them."""
    for record in records:
        config, result = record.config, record.result
        first, last = config["filters"]
        for key, norms in result["true"].items():
            padding, stride = key.split()
            estimates = {CIRCULANT: result["circulant"][stride], GRAM: result["gram"]}
            for estimate, values in estimates.items():
                for index, true, value in zip(range(first, last), norms, values, strict=True):
                    yield Error(
                        config["kernel"],
                        config["channels"],
                        index,
                        padding,
                        int(stride),
                        estimate,
                        true,
                        abs(value - true),
                    )


def complete(records: Sequence[Record]) -> list[Error]:
    """The errors of those filters that were measured with all kernels and channels of any filter.

    A mean over filters, of which some lack the most channels, would be one of two populations.
    """
    found = list(errors(records))
    measured: dict[int, set[tuple[int, int]]] = {}
    for error in found:
        measured.setdefault(error.index, set()).add((error.kernel, error.channels))
    channels = {*CHANNELS, *(error.channels for error in found)}
    wanted = set(product(KERNELS, channels))
    return [error for error in found if wanted <= measured[error.index]]
