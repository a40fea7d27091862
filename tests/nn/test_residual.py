"""Convex combinations, and other residual sums, against their closed forms."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from oracle.slopes import Function, affine_norm, jacobian_norms
from spectralclip._bounds import norm_bounds
from spectralclip._lipschitz import lipschitz_bounds
from spectralclip._models import find_layers
from spectralclip.nn import ConvexMix, MaxMin

X = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))


def conv(channels: int = 4, seed: int = 0) -> nn.Conv2d:
    layer = nn.Conv2d(4, channels, 3, padding=1)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.copy_(0.3 * torch.randn(layer.weight.shape, generator=generator))
    return layer


def upper(layer: nn.Module) -> float:
    return norm_bounds(layer, (4, 5, 5)).upper


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_it_is_the_combination_with_the_weight_that_it_began_with(weight: float) -> None:
    branch, shortcut = conv(), conv(seed=1)
    mix = ConvexMix(branch, shortcut, weight=weight)
    assert float(mix.weight.detach()) == pytest.approx(weight)
    expected = weight * shortcut(X) + (1 - weight) * branch(X)
    torch.testing.assert_close(mix(X), expected)
    torch.testing.assert_close(
        ConvexMix(branch, weight=weight)(X), weight * X + (1 - weight) * branch(X)
    )


def test_the_weight_learns_and_follows_the_parameters() -> None:
    mix = ConvexMix(conv().double())
    assert mix.theta.dtype == torch.float64 and mix.theta.shape == ()
    assert "theta" in dict(mix.named_parameters())
    mix(X.double()).square().sum().backward()
    assert mix.theta.grad is not None and float(mix.theta.grad) != 0
    assert ConvexMix(nn.ReLU()).theta.dtype == torch.float32
    assert list(find_layers(mix, X.double())) == ["branch"]


@pytest.mark.parametrize("weight", [0.0, 1.0, -1, 2, math.nan, "a"])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be strictly between 0 and 1"):
        ConvexMix(nn.ReLU(), weight=weight)


def test_sides_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 4, 5, 5\) from its shortcut.*\(2, 8, 5, 5\)"):
        ConvexMix(conv(8))(X)
    with pytest.raises(ValueError, match="Pass a shortcut"):  # which would broadcast
        ConvexMix(nn.AdaptiveAvgPool2d(1))(X)


# --- Their bounds ---------------------------------------------------------------------------------

A = 0.3


def lerped(x: Tensor, branch: nn.Module, theta: Tensor) -> Tensor:
    return torch.lerp(x, branch(x), (1 - theta.sigmoid()).to(x))


def model(kind: str, branch: nn.Module) -> nn.Module:
    theta = nn.Parameter(torch.tensor(A).logit())
    return {
        "ConvexMix": ConvexMix(branch, weight=A),
        "lerp": Function(lambda x, f: lerped(x, f, theta), branch),
        "by hand": Function(
            lambda x, f: theta.sigmoid() * x + (1 - theta.sigmoid()) * f(x), branch
        ),
    }[kind]


@pytest.mark.parametrize("kind", ["ConvexMix", "lerp", "by hand"])
def test_the_bound_is_the_same_combination_of_bounds(kind: str) -> None:
    branch = nn.Sequential(conv(), MaxMin(), conv(seed=1))
    mix = model(kind, branch)
    bound = lipschitz_bounds(mix, X)
    expected = A + (1 - A) * upper(branch[0]) * upper(branch[2])
    assert bound.upper == pytest.approx(expected, rel=1e-5)
    assert float(jacobian_norms(mix, X).max()) <= bound.upper


@pytest.mark.parametrize("kind", ["ConvexMix", "lerp", "by hand"])
def test_an_affine_branch_is_one_operator_with_its_shortcut(kind: str) -> None:
    mix = model(kind, conv())
    truth = affine_norm(copy.deepcopy(mix), (4, 5, 5))
    bound = lipschitz_bounds(mix, X)
    assert truth * (1 - 1e-5) <= bound.upper <= 1.01 * truth
    assert bound.upper < A + (1 - A) * upper(conv())


def test_the_larger_of_two_constants_is_not_exceeded() -> None:
    sides = [conv(), conv(seed=1)]
    with torch.no_grad():
        for side in sides:
            side.weight /= upper(side)
    for weight in (0.01, 0.5, 0.99):
        mix = ConvexMix(nn.Sequential(sides[0], MaxMin()), sides[1], weight=weight)
        assert lipschitz_bounds(mix, X, local=False).upper <= 1.01


def test_a_residual_sum_over_a_constant() -> None:
    residual = Function(lambda x, f: x + f(x) / 3, nn.Sequential(conv(), MaxMin()))
    bound = lipschitz_bounds(residual, X, local=False)
    assert bound.upper == pytest.approx(1 + upper(conv()) / 3, rel=1e-6)
