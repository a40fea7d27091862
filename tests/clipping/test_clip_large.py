"""Large convolutions are clipped on a part of the image."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from large_layers import Recorder, renewed, slow_where
from torch import nn

import spectralclip as sc
from oracle import symbol_norms
from spectralclip._clipping import clip as _clip

CLIPPED = [
    (nn.Conv2d(1, 1, 3, padding=1), (1, 300, 280)),
    (nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), (1, 256, 256)),
    (nn.Conv1d(1, 1, 9, padding=4), (1, 5_000)),
]


@pytest.mark.parametrize("share", [0.4, pytest.param(0.9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("layer", "in_shape"), slow_where(CLIPPED, {1}), ids=lambda value: str(value)[:40]
)
def test_clipping_on_large_images(
    layer: Any, in_shape: tuple[int, ...], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = renewed(layer)
    before = copy.deepcopy(layer)
    grid = tuple(n + layer.kernel_size[0] for n in in_shape[1:])
    bound = share * symbol_norms(layer, grid).max()
    with Recorder() as recorder:
        result = sc.clip_(layer, in_shape, bound)
    norm = symbol_norms(layer, tuple(4 * n for n in in_shape[1:]) if len(grid) == 1 else grid).max()
    assert norm <= bound * (1 + 1e-3)
    assert norm * (1 - 1e-4) <= result.norm_after <= bound * (1 + 1e-3)
    assert result.converged
    # It is read in on the whole image, and worked on where there is a fourth of that, or less.
    assert recorder.convolved <= (16 + result.num_matvecs / 2.5) * math.prod(in_shape)
    # The same on the whole image: the distance is about as small.
    monkeypatch.setattr(_clip.View, "cropped", lambda self, excess: None)
    whole = sc.clip_(before, in_shape, bound)
    assert result.distance <= 1.02 * whole.distance
    if result.distance_lower_bound is not None:
        assert result.distance_lower_bound <= whole.distance * (1 + 1e-3)


def test_a_large_convolution_within_the_bound_stays_as_it_is() -> None:
    for kind, in_shape in CLIPPED:
        layer = renewed(kind)
        norm = symbol_norms(layer, tuple(n + 9 for n in in_shape[1:])).max()
        weight = layer.weight.detach().clone()
        result = sc.clip_(layer, in_shape, norm * (1 + 1e-6))
        assert torch.equal(layer.weight, weight) and result.distance == 0


def test_a_large_convolution_with_a_batch_norm_and_in_half_precision() -> None:
    norm = nn.BatchNorm2d(2)
    norm.running_var = torch.tensor([0.5, 2.0])
    pair = [nn.Conv2d(2, 2, 3, padding=1), norm.eval()]
    sc.clip_(pair, (2, 250, 250), 0.5)
    assert sc.norm_bounds(pair, (2, 250, 250), tol=1e-3).lower <= 0.5
    assert sc.norm_bounds(pair, (2, 250, 250), tol=1e-3).upper <= 0.5 * 1.002
    half = nn.Conv2d(1, 1, 3, padding=1).bfloat16()
    result = sc.clip_(half, (1, 250, 250), 0.5)
    assert sc.norm_bounds(half, (1, 250, 250), tol=1e-3).lower <= 0.5 * 1.001
    assert result.norm_after <= 0.5 * 1.001


def test_exact_clipping_on_a_large_image_is_near_its_lower_bound() -> None:
    conv = nn.Conv2d(1, 2, 3, padding=1)
    result = sc.clip_(conv, (1, 250, 250), 0.5, exact=True)
    assert result.distance_lower_bound is not None
    assert result.distance_lower_bound <= result.distance <= 1.01 * result.distance_lower_bound
