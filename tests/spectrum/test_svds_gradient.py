"""The gradient of `spectral_norm`, against that of the dense norm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    CASES,
    Case,
    LowRank,
    Residual,
    TiedPair,
    dense_singular_values,
    params,
    train_batch_norm,
)
from seeds import seeded
from spectrum_cases import assert_values
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import spectralclip as sc
from oracle import dense_norm, singular_values


def shared_twice() -> nn.Module:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    return nn.Sequential(conv, nn.Conv2d(2, 2, 1), conv)


DIFFERENTIABLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "conv": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 5)),
    "conv-reflect-stride": (
        lambda: nn.Conv2d(2, 3, 3, padding=1, stride=2, padding_mode="reflect"),
        (2, 6, 5),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "conv-bn": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (2, 6, 6)),
    "bn-conv": (lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3)), (2, 6, 6)),
    "conv-conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)), (2, 7, 7)),
    "weight-norm": (lambda: parametrizations.weight_norm(nn.Linear(6, 5)), (6,)),
    "low-rank": (lambda: LowRank(7, 3, 6), (7,)),
    "residual": (lambda: Residual(nn.Conv2d(2, 2, 3, padding=1)), (2, 4, 4)),
    "tied": (lambda: TiedPair(), (6,)),
    "shared": (shared_twice, (2, 4, 4)),
    "embedding": (lambda: nn.Sequential(nn.Identity(), nn.Linear(5, 4, bias=False)), (5,)),
}


def differentiable(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    make, in_shape = DIFFERENTIABLE[name]
    with seeded(3):
        layer = make().double()
        for module in layer.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                train_batch_norm(module)
    return layer, in_shape


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_of_the_norm_is_that_of_the_dense_norm(name: str) -> None:
    """Finite differences of NumPy's norm of the dense matrix, along random directions."""
    layer, in_shape = differentiable(name)
    layer.eval()
    values = singular_values(layer, in_shape)
    assert values[1] < 0.999 * values[0]
    norm = sc.spectral_norm(layer, in_shape, tol=1e-12, differentiable=True)
    assert norm.shape == ()
    assert float(norm.detach()) == pytest.approx(values[0], rel=1e-10)
    parameters = dict(layer.named_parameters())
    gradients = torch.autograd.grad(
        norm, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    generator = torch.Generator().manual_seed(0)
    step = 1e-5
    for (key, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        for _ in range(3):
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            norms = []
            original = parameter.detach().clone()
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.copy_(original + sign * step * direction)
                norms.append(dense_norm(layer, in_shape))
            with torch.no_grad():
                parameter.copy_(original)
            slope = (norms[0] - norms[1]) / (2 * step)
            got = float(torch.sum(gradient * direction))
            assert got == pytest.approx(slope, rel=1e-5, abs=1e-7), key


@pytest.mark.parametrize("name", ["linear", "conv", "conv-bn"])
def test_gradcheck(name: str) -> None:
    layer, in_shape = differentiable(name)

    class Norm(torch.autograd.Function):
        """The norm as a function of the weights, so that gradcheck can move them."""

        @staticmethod
        def forward(ctx: Any, *weights: Tensor) -> Tensor:
            moved = copy.deepcopy(layer)
            ctx.parameters = list(moved.parameters())
            with torch.no_grad():
                for parameter, weight in zip(ctx.parameters, weights, strict=True):
                    parameter.copy_(weight)
            with torch.enable_grad():
                ctx.norm = sc.spectral_norm(moved, in_shape, tol=1e-12, differentiable=True)
            return ctx.norm.detach()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(
                *(ctx.norm, ctx.parameters, gradient),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )

    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(Norm.apply, weights, atol=1e-6, rtol=1e-4)


def test_gradient_of_the_norm_of_a_dense_layer_is_u_times_v() -> None:
    layer, in_shape = differentiable("linear")
    sc.spectral_norm(layer, in_shape, tol=1e-12, differentiable=True).backward()
    left, _, right = np.linalg.svd(layer.weight.detach().numpy())
    np.testing.assert_allclose(layer.weight.grad, np.outer(left[:, 0], right[0]), atol=1e-10)


def test_penalty_brings_the_norm_down() -> None:
    layer, in_shape = differentiable("conv-bn")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    before = float(sc.spectral_norm(layer, in_shape))
    for _ in range(10):
        optimizer.zero_grad()
        (sc.spectral_norm(layer, in_shape, differentiable=True) ** 2).backward()
        optimizer.step()
    assert float(sc.spectral_norm(layer, in_shape)) < 0.9 * before


@pytest.mark.parametrize("case", params(CASES))
def test_differentiable_norm_is_the_norm(case: Case) -> None:
    layer = case.make()
    value = sc.spectral_norm(layer, case.in_shape, differentiable=True).detach()
    assert_values(value[None], dense_singular_values(case)[:1], 1e-3)
