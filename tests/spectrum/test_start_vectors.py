"""Runs on large images begin with waves, which takes few applications."""

from __future__ import annotations

import pytest
from large_layers import renewed
from torch import nn

import spectralclip as sc


@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (nn.Conv2d(1, 1, 3, padding=1), (1, 300, 300)),
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 120, 120)),
        (nn.Conv2d(3, 16, 7, stride=2, padding=3), (3, 320, 320)),
        (nn.ConvTranspose2d(8, 2, 4, stride=2, padding=1), (8, 120, 120)),
        (nn.Conv1d(1, 1, 9, padding=4), (1, 100_000)),
    ],
    ids=str,
)
def test_the_norm_on_a_large_image_takes_few_applications(
    layer: nn.Module, in_shape: tuple[int, ...]
) -> None:
    layer = renewed(layer)
    found = sc.svds(layer, in_shape, 1)
    assert found.converged and found.num_matvecs <= 30
    upper = sc.norm_bounds(layer, in_shape, tol=1e-3).upper
    assert upper / 1.0015 <= float(found.S[0]) <= upper
