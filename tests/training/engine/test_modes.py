"""Convolutions followed through Fourier modes, against symbols computed by Fourier transforms."""

from __future__ import annotations

import pytest
import torch
from engine_stages import norms, of_seed, run, stage_of
from torch import nn

from oracle import dense_norm, symbol_norms
from spectralclip._training.engine.modes import Modes

CIRCULAR = {
    "plain": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), 6),
    "strided": (lambda: nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode="circular"), 8),
    "wide": (lambda: nn.Conv2d(2, 3, 5, padding=2, padding_mode="circular"), 7),
    "dilated": (
        lambda: nn.Conv2d(3, 3, 3, padding=2, dilation=2, padding_mode="circular"),
        8,
    ),
    "large image": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), 40),
}


@pytest.mark.parametrize("name", CIRCULAR)
def test_norms_are_the_largest_symbols(name: str) -> None:
    make, side = CIRCULAR[name]
    layer = of_seed(make)
    stage = stage_of(layer, (layer.in_channels, side, side))
    assert [type(group) for group in stage.groups] == [Modes]
    expected = float(symbol_norms(layer, (side, side)).max())
    assert float(norms(stage)) == pytest.approx(expected, rel=2e-3)


def test_the_groups_of_a_convolution_are_kernels_of_their_own() -> None:
    layer = of_seed(lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, padding_mode="circular"))
    expected = []
    for own in layer.weight.detach().chunk(2):
        part = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")
        part.weight = nn.Parameter(own)
        expected.append(float(symbol_norms(part, (6, 6)).max()))
    found = norms(stage_of(layer, (4, 6, 6)))
    torch.testing.assert_close(found.double(), torch.tensor(expected).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("stride", [1, 2])
def test_zero_padding_is_held_from_above(stride: int) -> None:
    """On the torus that the layer is a part of, whose norm is never below the layer's own."""
    layer = of_seed(lambda: nn.Conv2d(4, 5, 3, stride, padding=1))
    stage = stage_of(layer, (4, 6, 6))
    true = dense_norm(layer, (4, 6, 6))
    assert 0.999 * true <= float(norms(stage)) <= 1.1 * true


@pytest.mark.parametrize("name", CIRCULAR)
def test_cuts_bring_a_layer_to_its_target_and_keep_most_of_it(name: str) -> None:
    make, side = CIRCULAR[name]
    layer = of_seed(make)
    shape = (layer.in_channels, side, side)
    norm = dense_norm(layer, shape) if side < 20 else float(symbol_norms(layer, (side, side)).max())
    bound, before = 0.8 * norm, layer.weight.detach().clone()
    stage = stage_of(layer, shape, bound=bound)
    run(stage, 8, far=True)
    left = float(symbol_norms(layer, (side, side)).max())
    assert 0.93 * bound <= left <= 1.002 * bound
    moved = float((layer.weight.detach() - before).norm() / before.norm())
    assert moved < 0.9 * (1 - left / norm)  # that far a scale would move it


def test_with_a_batch_norm_its_factor_moves_and_the_kernel_stays() -> None:
    conv, norm = of_seed(lambda: nn.Conv2d(3, 4, 3, padding=1)), nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([3.0, 2.0, 0.5, 1.0]))
        norm.running_var.copy_(torch.tensor([1.0, 2.0, 0.3, 0.7]))
    model = nn.Sequential(conv, norm).eval()
    bound, before = 0.7 * dense_norm([conv, norm], (3, 6, 6)), conv.weight.detach().clone()
    stage = stage_of(model, (3, 6, 6), bound=bound, compose="conv_bn")
    run(stage, 8, far=True)
    assert torch.equal(conv.weight, before)
    assert 0.85 * bound <= dense_norm([conv, norm], (3, 6, 6)) <= 1.002 * bound
