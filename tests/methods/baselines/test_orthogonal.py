"""Layers that are orthogonal by construction: what every method promises, and what it refuses."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from orthogonal_cases import LAYERS, attached, method_of, over_methods
from torch import Tensor, nn
from training_cases import EXAMPLE, sgd, small_network, snapshot, train

from oracle import dense_matrix, singular_values
from spectralclip import FoundLayer, attach, find_layers
from spectralclip.methods.baselines._swap import SwapMethod
from spectralclip.methods.baselines.aol import AOL
from spectralclip.methods.baselines.cayley import Cayley
from spectralclip.methods.baselines.eco import ECO
from spectralclip.methods.baselines.lot import LOT
from spectralclip.methods.baselines.soc import SOC


def rank_of(layer: Any, in_shape: tuple[int, ...]) -> int:
    """How many singular values are not zero by shape, on a torus."""
    if isinstance(layer, nn.Linear):
        return min(layer.weight.shape)
    outputs = layer.out_channels // layer.groups
    phases = 1 if math.prod(layer.kernel_size) == 1 else math.prod(layer.stride)
    inputs = layer.in_channels // layer.groups * phases
    positions = math.prod(n // s for n, s in zip(in_shape[1:], layer.stride, strict=True))
    return int(layer.groups * min(outputs, inputs) * positions)


# --- What they promise -----------------------------------------------------------------------


@over_methods
@pytest.mark.parametrize("kind", LAYERS)
def test_all_singular_values_are_the_bound_and_the_plain_layer_is_the_same(
    kind: str, name: str
) -> None:
    make, in_shape = LAYERS[kind]
    layer = make()
    if name == "eco" and kind in ("stride", "patches", "mixed stride"):
        with pytest.raises(ValueError, match="ECO found no layer"):
            attached(method_of(name), layer, in_shape)
        return
    rank = rank_of(layer, in_shape)
    model, attachment = attached(method_of(name), layer, in_shape, max_norm=0.7)
    swapped = dense_matrix(model, in_shape)
    values = np.linalg.svd(swapped, compute_uv=False)
    np.testing.assert_allclose(values[:rank], 0.7, rtol=0, atol=1e-9)
    np.testing.assert_allclose(values[rank:], 0, atol=1e-9)
    attachment.remove()
    assert "forward" not in vars(model[0])
    np.testing.assert_allclose(dense_matrix(model, in_shape), swapped, rtol=0, atol=1e-12)
    if len(in_shape) > 1 and kind != "pointwise":
        assert model[0].padding_mode == "circular"
        assert repr(model[0]).startswith(f"Conv{len(in_shape) - 1}d(")


@over_methods
def test_single_precision(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1))
    attachment = attach(model, None, torch.zeros(1, 8, 8, 8), method=method_of(name))
    attachment.remove()
    values = singular_values(model.double(), (8, 8, 8))
    np.testing.assert_allclose(values, 1, rtol=0, atol=2e-6)


@pytest.mark.sampled(4)
@over_methods
@pytest.mark.parametrize("scale", [30.0, 1e3, 3e4, 1e12, 1e25])
def test_large_weights_in_single_precision(name: str, scale: float) -> None:
    """Rounding is not to add up, nor are squares to overflow."""
    if name in ("lot", "cayley") and scale > 1e15:
        pytest.skip("products of weights overflow")
    model = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 7, 1))
    with torch.no_grad():
        for conv in model:
            conv.weight.mul_(scale)
    attach(model, None, torch.zeros(1, 24, 4, 4), method=method_of(name)).remove()
    for conv in model:
        values = singular_values(conv.double(), (24, 4, 4))
        np.testing.assert_allclose(values[: rank_of(conv, (24, 4, 4))], 1, rtol=0, atol=3e-6)


@over_methods
def test_gradients_of_large_weights(name: str) -> None:
    layer = nn.Linear(4, 4, bias=False).double()
    with torch.no_grad():
        layer.weight.mul_(60)
    method: Any = method_of(name)
    weight = layer.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(method.orthogonal, (weight[None],), rtol=1e-4, atol=1e-6)


@over_methods
def test_orthogonal_after_training(name: str) -> None:
    model = small_network()
    optimizer = sgd(model, lr=0.1)
    attachment = attach(model, optimizer, EXAMPLE, method=method_of(name))
    before = snapshot(model)
    train(model, optimizer, 4)
    layers = attachment.layers
    assert set(layers) == ({"0", "6", "9"} if name == "eco" else {"0", "3", "6", "9"})
    for key in layers:
        assert not torch.equal(model.get_parameter(f"{key}.weight"), before[f"{key}.weight"])
    results = attachment.finalize()
    assert set(results) == set(layers)
    assert all(result.distance == 0 for result in results.values())  # nothing was left to clip
    for key, layer in layers.items():
        twin = copy.deepcopy(layer.modules[0]).double()
        values = singular_values(twin, layer.in_shapes[0])
        np.testing.assert_allclose(values, 1, rtol=0, atol=1e-5, err_msg=key)
    assert model.eval()(EXAMPLE).shape == (2, 10)


def test_channels_that_are_zero_have_finite_gradients() -> None:
    for method in (AOL(), LOT(), SOC(), ECO()):
        conv = nn.Conv2d(3, 3, 3, padding=1)
        with torch.no_grad():
            conv.weight[:, 1] = 0
        model, _ = attached(method, conv, (3, 6, 6))
        model(torch.randn(2, 3, 6, 6).double()).square().sum().backward()
        assert bool(torch.isfinite(conv.weight.grad).all()), method


# --- What they refuse ------------------------------------------------------------------------


class TwoUses(nn.Module):
    """One convolution at two sizes, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        small = self.conv(self.conv(x)[..., ::2, ::2])
        y: Tensor = self.right(self.left(small.mean((-1, -2))))
        return y


def why_not(method: SwapMethod, layer: nn.Module, *in_shape: int) -> str:
    return method.why_not(FoundLayer("", (layer,), (in_shape,), (), 1), in_shape)


@over_methods
def test_refused(name: str) -> None:
    method = method_of(name)
    assert "7 becomes 4 with stride 2" in why_not(
        method, nn.Conv2d(2, 2, 3, stride=2, padding=1), 2, 7, 7
    )
    assert "8 becomes 6" in why_not(method, nn.Conv2d(2, 2, 3), 2, 8, 8)
    assert "not ConvTranspose2d" in why_not(method, nn.ConvTranspose2d(2, 2, 3), 2, 8, 8)
    assert "not BatchNorm2d" in why_not(method, nn.BatchNorm2d(2), 2, 8, 8)
    layers = find_layers(TwoUses(), torch.zeros(1, 2, 8, 8), "none")
    assert "one size of image, not for 2" in method.why_not(
        layers["conv"], *layers["conv"].in_shapes
    )
    assert "shared with right" in method.why_not(layers["left"], *layers["left"].in_shapes)
    with pytest.raises(ValueError, match="found no layer to constrain"):
        attach(TwoUses(), None, torch.zeros(1, 2, 8, 8), method=method)


def test_who_has_an_estimate() -> None:
    assert not any(hasattr(kind, "estimate") for kind in (SOC, Cayley, LOT, ECO))
    assert AOL.estimate(nn.Linear(3, 3), (3,)) > 0
