"""Bounds that hold at every input size, against dense SVDs at many sizes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from cases import cumulative_sum, train_batch_norm, with_weight
from drawn_convolutions import SAME_EVEN
from torch import nn

import spectralclip as sc
from oracle import dense_norm
from spectralclip._bounds import norm_bounds_all_sizes

SIZELESS: dict[str, Any] = {
    "zeros": lambda: nn.Conv1d(2, 3, 3, padding=1),
    "valid": lambda: nn.Conv1d(3, 2, 4),
    "stride": lambda: nn.Conv1d(2, 3, 5, stride=2, padding=2),
    "stride-over-kernel": lambda: nn.Conv1d(2, 3, 2, stride=3),
    "dilation": lambda: nn.Conv1d(2, 2, 3, dilation=2, padding=2),
    "dilation-stride": lambda: nn.Conv1d(2, 2, 4, dilation=2, stride=4, padding=3),
    "dilation-stride-coprime": lambda: nn.Conv1d(2, 2, 3, dilation=3, stride=2, padding=3),
    "groups": lambda: nn.Conv1d(4, 6, 3, groups=2, padding=1),
    "over-padded": lambda: nn.Conv1d(2, 2, 2, padding=3),
    "same-even": lambda: nn.Conv1d(2, 2, 4, padding="same"),
    "circular": lambda: nn.Conv1d(2, 3, 5, padding=2, padding_mode="circular"),
    "circular-stride": lambda: nn.Conv1d(2, 3, 3, padding=1, stride=2, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1),
    "transposed-bn": lambda: [nn.ConvTranspose1d(3, 2, 3), nn.BatchNorm1d(2)],
    "conv-bn": lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.BatchNorm1d(3)),
    "bn-conv": lambda: [nn.BatchNorm1d(2), nn.Conv1d(2, 3, 3, padding=1)],
    "weight-norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3, padding=1)),
}


def made(name: str) -> Any:
    layer = SIZELESS[name]()
    for part in layer if isinstance(layer, (list, nn.Sequential)) else [layer]:
        if isinstance(part, nn.BatchNorm1d):
            train_batch_norm(part)
    return layer


@pytest.mark.filterwarnings(SAME_EVEN)
@pytest.mark.parametrize("name", SIZELESS)
def test_a_bound_for_every_size(name: str) -> None:
    layer = made(name)
    interval = norm_bounds_all_sizes(layer)
    assert interval.kind == "every size"
    first = layer[0] if isinstance(layer, (list, nn.Sequential)) else layer
    channels = getattr(first, "in_channels", None) or first.num_features
    norms = [dense_norm(layer, (channels, size)) for size in (*range(4, 25), 96)]
    assert max(norms) <= interval.upper
    # The lower end is approached as the size grows.
    assert norms[-1] >= 0.99 * interval.lower
    if name != "circular-stride":
        assert interval.width <= 0.01
    assert dataclasses.replace(interval, failure=0.0, num_matvecs=0) == interval


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Conv2d(2, 3, (3, 5), stride=(1, 2), padding=2),
        nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        nn.Conv2d(2, 2, 3, padding=2, dilation=2, padding_mode="circular"),
    ],
    ids=["zeros", "uneven", "transposed", "circular-dilated"],
)
def test_a_bound_for_every_size_2d(layer: nn.Module) -> None:
    interval = norm_bounds_all_sizes(layer)
    norms = [dense_norm(layer, (2, n, n + 1)) for n in (4, 5, 8, 13, 16)]
    assert max(norms) <= interval.upper
    assert max(norms) >= 0.9 * interval.lower
    assert interval.width <= 0.01
    large = float(sc.svds(layer, (2, 60, 60), 1, tol=1e-6).S[0])
    assert 0.99 * interval.lower <= large <= interval.upper


def test_a_bound_for_every_size_3d() -> None:
    layer = nn.Conv3d(1, 2, (2, 3, 2), padding=1)
    interval = norm_bounds_all_sizes(layer, tol=0.05)
    assert interval.width <= 0.05
    assert dense_norm(layer, (1, 6, 7, 6)) <= interval.upper


def test_windows_closer_than_a_stride_across_the_seam() -> None:
    """At a size that the stride does not divide, two windows of ones see the same three pixels."""
    layer = nn.Conv1d(1, 1, 3, stride=2, padding=1, padding_mode="circular")
    layer = with_weight(layer, torch.ones(1, 1, 3))
    interval = norm_bounds_all_sizes(layer)
    assert dense_norm(layer, (1, 3)) > math.sqrt(5) * 1.05  # above all sizes that it divides
    assert dense_norm(layer, (1, 3)) <= interval.upper
    assert interval.lower == pytest.approx(math.sqrt(5), rel=1e-2)


@pytest.mark.parametrize("degree", [1, 2, 5])
@pytest.mark.parametrize("rtol", [1e-3, 0.01, 0.3])
def test_between_the_points_of_the_grid(degree: int, rtol: float) -> None:
    """One channel: the symbol's maximum from a grid a thousand times finer."""
    layer = nn.Conv1d(1, 1, degree + 1).double()
    taps = layer.weight.detach().numpy()[0, 0]
    finest = np.abs(np.fft.fft(taps, 50_000)).max()
    interval = norm_bounds_all_sizes(layer, tol=rtol)
    assert interval.lower <= finest * (1 + 1e-8)
    assert finest <= interval.upper
    assert interval.width <= rtol


@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (nn.Linear(7, 5), (7,)),
        (nn.BatchNorm2d(4, affine=False), (4, 3, 3)),
        (nn.BatchNorm1d(4), (4,)),
        (nn.BatchNorm3d(4), (4, 2, 2, 2)),
        (nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)), (7,)),
    ],
    ids=["linear", "batch-norm2d", "batch-norm1d", "batch-norm3d", "linear-bn"],
)
def test_layers_without_a_size(layer: nn.Module, in_shape: tuple[int, ...]) -> None:
    interval = norm_bounds_all_sizes(layer)
    assert interval.kind == "exact"
    assert dense_norm(layer, in_shape) in interval


REFUSED: dict[str, Any] = {
    "reflect": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
    "replicate": nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"),
    "repeated-windows": nn.Conv2d(2, 2, 3, padding=3, padding_mode="circular"),
    "pool": nn.AvgPool2d(2),
    "two-convs": [nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)],
    "conv-linear": [nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2)],
    "callable": cumulative_sum,
    "empty": [],
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_bound_for_every_size(name: str) -> None:
    refusal = r"at every input size is known for .* Use norm_bounds\(layer, in_shape"
    with pytest.raises(ValueError, match=refusal):
        norm_bounds_all_sizes(REFUSED[name])
