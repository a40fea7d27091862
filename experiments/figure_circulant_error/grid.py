"""The runs: filters by kernel and channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.experiment import Config, Scale
from experiments.figure_circulant_error.errors import CHANNELS, KERNELS, MORE_CHANNELS

FILTERS = 100
SIDE = 32
# By the square of the channels: what the estimates and the truth of a filter cost, and how much of
# it goes into a cell of a minute or two.
BASE_WORK, CELL_WORK = 20, 3e6


def grid(scale: Scale) -> list[Config]:
    """Cells of as many filters as go into a minute or two; the figure is the same at full size."""
    if scale == "smoke":
        return list(_cells((3, 5), (1, 2, 4), filters=4, side=8))
    channels = (*CHANNELS, *MORE_CHANNELS) if scale == "paper" else CHANNELS
    return list(_cells(KERNELS, channels, filters=FILTERS, side=SIDE))


def _cells(
    kernels: Sequence[int], channels: Sequence[int], filters: int, side: int
) -> Iterator[Config]:
    for kernel in kernels:
        for width in channels:
            size = min(filters, max(1, round(CELL_WORK / (width**2 * (kernel**2 + BASE_WORK)))))
            for first in range(0, filters, size):
                last = min(first + size, filters)
                yield {
                    "label": f"{kernel}x{kernel} {width} channels filters {first} to {last - 1}",
                    "kernel": kernel,
                    "channels": width,
                    "side": side,
                    "filters": [first, last],
                    "seed": 0,
                }
