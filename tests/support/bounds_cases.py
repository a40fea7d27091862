"""What tests of bounds share: what an interval keeps, and layers whose Gram matrices are bands."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import train_batch_norm
from torch import Tensor, nn

import spectralclip as sc
from spectralclip import LinearOperator
from spectralclip._bounds import Interval
from spectralclip._bounds.banded import BandedGram

DETERMINISTIC = {"exact", "embedding", "every size", "cholesky"}


def assert_holds(interval: Interval, truth: float, error: float = 0.0) -> None:
    """The truth is inside, and the interval is what it says."""
    assert interval.lower <= truth * (1 + error)
    assert truth * (1 - error) <= interval.upper
    assert 0 <= interval.lower <= interval.upper < math.inf
    assert (interval.failure == 0) == (interval.kind in DETERMINISTIC)


def operator(layer: Any, in_shape: tuple[int, ...]) -> LinearOperator:
    return sc.as_operator(layer, in_shape, dtype=torch.float64)


def composed() -> dict[str, tuple[Any, tuple[int, ...]]]:
    def padded(*args: Any, mode: str = "reflect", kind: Any = nn.Conv2d, **kwargs: Any) -> Any:
        return kind(*args, padding=1, padding_mode=mode, dtype=torch.float64, **kwargs)

    normed = [padded(3, 5, 3), nn.BatchNorm2d(5, dtype=torch.float64)]
    train_batch_norm(normed[1])
    return {
        "conv-bn": (normed, (3, 9, 8)),
        "two-convs": ([padded(2, 3, 3, stride=2), padded(3, 4, 3)], (2, 14, 9)),
        "three-convs": ([padded(2, 2, 3) for _ in range(3)], (2, 12, 7)),
        "conv-and-transposed": (
            [padded(2, 3, 3), nn.ConvTranspose2d(3, 2, 4, stride=2, dtype=torch.float64)],
            (2, 9, 7),
        ),
        "circular-composed": ([padded(2, 2, 3, mode="circular") for _ in range(2)], (2, 12, 6)),
        "groups": (padded(6, 9, 3, groups=3, mode="replicate"), (6, 8, 7)),
        "groups-in-a-chain": ([padded(4, 8, 3, groups=4), padded(8, 4, 3, groups=2)], (4, 7, 6)),
        "depthwise": (padded(5, 5, 3, groups=5), (5, 9, 6)),
        "conv1d": (padded(4, 3, 3, kind=nn.Conv1d), (4, 40)),
        "conv3d": (padded(2, 3, 3, kind=nn.Conv3d, stride=(2, 1, 1)), (2, 6, 4, 5)),
        "conv-and-linear-on-rows": (
            [padded(2, 3, 3), nn.Linear(6, 4, dtype=torch.float64)],
            (2, 9, 6),
        ),
    }


def grams(layer: Any, shape: tuple[int, ...]) -> list[BandedGram]:
    op = operator(layer, shape)
    both = (op, op.adjoint())
    return [
        BandedGram(side.maps, axis, op.device)
        for side in both
        for axis in range(1, max(2, len(side.in_shape)))
    ]


def assembled(gram: BandedGram, group: int) -> Tensor:
    """The whole matrix; only its lower blocks can be asked for."""
    size, count = gram.size, gram.count
    whole = torch.zeros(count * size, count * size, dtype=torch.float64)
    for i in range(count):
        for j in range(i + 1):
            block = gram.block(i, j)[group] if i - j <= gram.bandwidth else torch.zeros(())
            whole[i * size : (i + 1) * size, j * size : (j + 1) * size] = block
    return whole.tril() + whole.tril(-1).T
