"""The bound of networks made for certificates is the product of their layers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle.slopes import Function
from spectralclip._bounds import norm_bounds
from spectralclip._lipschitz import lipschitz_bounds
from spectralclip.nn import GroupSort, MaxMin


def by_hand(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)


ACTIVATIONS = {"MaxMin": MaxMin(), "GroupSort": GroupSort(2), "by hand": Function(by_hand)}
WIDTHS = ((12, 32), (32, 32), (128, 64), (64, 64), (256, 128), (128, 128), (128, 128))


class Certified(nn.Module):
    """Seven convolutions, pixel unshuffling before some of them, one dense layer, a temperature."""

    def __init__(self, activation: nn.Module, pooled: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in WIDTHS)
        self.act, self.pooled = activation, pooled
        self.head = nn.Linear(128 if pooled else 128 * 16, 10)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for layer in (*self.layers, self.head):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
                layer.weight /= layer.weight[0].numel() ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.pixel_unshuffle(x, 2) if layer.in_channels != x.shape[1] else x
            x = self.act(layer(x))
        x = x.mean((2, 3)) if self.pooled else x.flatten(1)
        out: Tensor = self.head(x) * 8.0
        return out


def product(model: Certified) -> float:
    """Of the upper ends of the layers, with the temperature."""
    side, uppers = 32, list[float]()
    channels = 3
    for layer in model.layers:
        side = side // 2 if layer.in_channels != channels else side
        channels = layer.out_channels
        uppers.append(norm_bounds(layer, (layer.in_channels, side, side)).upper)
    head = norm_bounds(model.head, (model.head.in_features,)).upper
    return math.prod(uppers) * head * 8.0 / (side if model.pooled else 1)


X = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_bound_is_the_product_of_the_layers(name: str) -> None:
    model = Certified(ACTIVATIONS[name])
    bound = lipschitz_bounds(model, X, local=False)
    assert bound.upper == pytest.approx(product(model), rel=1e-6)
    assert bound.product == pytest.approx(bound.upper, rel=1e-6)


def test_a_mean_over_pixels_is_one_operator_with_the_dense_layer() -> None:
    model = Certified(ACTIVATIONS["by hand"], pooled=True)
    bound = lipschitz_bounds(model, X, local=False)
    assert bound.upper == pytest.approx(product(model), rel=0.01)


def test_layout_and_precision_change_nothing() -> None:
    model = Certified(ACTIVATIONS["by hand"])
    expected = product(model)
    model = model.to(memory_format=torch.channels_last)
    laid_out = lipschitz_bounds(model, X.to(memory_format=torch.channels_last), local=False)
    half = lipschitz_bounds(model.half(), X.half(), local=False)
    assert laid_out.upper == pytest.approx(expected, rel=1e-4)
    assert half.upper == pytest.approx(expected, rel=0.01)
