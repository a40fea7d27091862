"""The nearest point within the bound: near enough, and with the symmetries of the problem."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from clip_cases import SMALL_CONVOLUTIONS, snapshot
from seeds import seeded
from torch import nn

from oracle import dense_matrix, dense_norm
from spectralclip import clip_


@pytest.mark.parametrize("name", SMALL_CONVOLUTIONS)
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_exact_is_within_one_percent_of_its_bound(name: str, share: float) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer = make()
    bound = share * dense_norm(layer, in_shape)
    result = clip_(layer, in_shape, bound, exact=True)
    assert result.converged and result.distance_lower_bound is not None
    assert result.distance_lower_bound <= result.distance <= 1.01 * result.distance_lower_bound
    assert 0.995 * bound <= dense_norm(layer, in_shape) <= 1.001 * bound


def projection_distance(layer: nn.Module, in_shape: tuple[int, ...], bound: float) -> float:
    """The true distance, by a semidefinite program over the layer's own weights."""
    import cvxpy  # takes a second

    weight = layer.get_parameter("weight")
    start, basis = dense_matrix(layer, in_shape), []
    for index in itertools.product(*[range(size) for size in weight.shape]):
        unit = copy.deepcopy(layer)
        with torch.no_grad():
            unit.get_parameter("weight").zero_()[index] = 1.0
        basis.append(dense_matrix(unit, in_shape))
    weights = cvxpy.Variable(len(basis))
    moved = sum(weights[j] * basis[j] for j in range(len(basis)))
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.norm(moved - start, "fro")), [cvxpy.sigma_max(moved) <= bound]
    )
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize(
    ("make", "in_shape"),
    [
        pytest.param(lambda: nn.Conv1d(2, 2, 3, padding=1, bias=False), (2, 5), id="zeros"),
        pytest.param(
            lambda: nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect", bias=False),
            (2, 5),
            id="reflect",
        ),
        pytest.param(
            lambda: nn.Conv1d(2, 3, 2, padding=1, padding_mode="circular", bias=False),
            (2, 5),
            id="circular",
        ),
        pytest.param(lambda: nn.Conv2d(1, 2, 2, stride=2, padding=1), (1, 4, 4), id="stride"),
        pytest.param(lambda: nn.Linear(4, 5, bias=False), (4,), id="dense"),
    ],
)
def test_distance_against_a_convex_solver(make: Any, in_shape: tuple[int, ...]) -> None:
    with seeded(3):
        layer = make()
    bound = 0.6 * dense_norm(layer, in_shape)
    truth = projection_distance(layer, in_shape, bound)
    exact = clip_(copy.deepcopy(layer), in_shape, bound, exact=True)
    assert exact.distance_lower_bound is not None
    assert exact.distance_lower_bound <= truth * (1 + 1e-4)
    assert truth * (1 - 2e-3) <= exact.distance <= 1.01 * truth
    default = clip_(layer, in_shape, bound)
    assert truth * (1 - 2e-3) <= default.distance <= 1.15 * truth


@pytest.mark.parametrize("name", SMALL_CONVOLUTIONS)
def test_idempotent(name: str) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer = make()
    bound = 0.5 * dense_norm(layer, in_shape)
    clip_(layer, in_shape, bound)
    before = snapshot(layer)
    assert clip_(layer, in_shape, bound).distance == 0
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(layer), strict=True))


@pytest.mark.parametrize("name", ["zeros", "circular", "reflect"])
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_scale_equivariance(name: str, scale: float) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer, scaled = make(), make()
    with torch.no_grad():
        scaled.weight.mul_(scale)
    bound = 0.5 * dense_norm(layer, in_shape)
    clip_(layer, in_shape, bound)
    clip_(scaled, in_shape, scale * bound)
    torch.testing.assert_close(scaled.weight / scale, layer.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["zeros", "reflect"])
def test_permuting_channels_permutes_the_result(name: str) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer, permuted = make(), make()
    order, sign = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    with torch.no_grad():
        permuted.weight.copy_(layer.weight[order] * sign[:, None, None, None])
    bound = 0.5 * dense_norm(layer, in_shape)
    first = clip_(layer, in_shape, bound, exact=True)
    second = clip_(permuted, in_shape, bound, exact=True)
    assert second.distance == pytest.approx(first.distance, rel=0.01)
    expected = layer.weight[order] * sign[:, None, None, None]
    torch.testing.assert_close(permuted.weight, expected, rtol=0.05, atol=0.01)


def full_size_kernel(seed: int) -> nn.Conv1d:
    """A circular convolution whose kernel is as long as its input: every symbol is free."""
    with seeded(seed):
        return nn.Conv1d(2, 3, 5, padding=2, padding_mode="circular", bias=False)


def test_full_size_kernels_are_clipped_symbol_by_symbol() -> None:
    conv = full_size_kernel(0)
    bound = 0.5 * dense_norm(conv, (2, 5))
    symbols = np.fft.fft(conv.weight.detach().double().numpy(), axis=-1).transpose(2, 0, 1)
    U, S, Vh = np.linalg.svd(symbols, full_matrices=False)
    clipped = (U * np.minimum(S, bound)[:, None, :]) @ Vh
    expected = np.fft.ifft(clipped.transpose(1, 2, 0), axis=-1).real
    clip_(conv, (2, 5), bound, exact=True)
    np.testing.assert_allclose(conv.weight.detach().numpy(), expected, atol=5e-3)


def test_translation_equivariance() -> None:
    conv, moved = full_size_kernel(1), full_size_kernel(1)
    with torch.no_grad():
        moved.weight.copy_(conv.weight.roll(2, -1))
    bound = 0.5 * dense_norm(conv, (2, 5))
    clip_(conv, (2, 5), bound, exact=True)
    clip_(moved, (2, 5), bound, exact=True)
    torch.testing.assert_close(moved.weight, conv.weight.roll(2, -1), rtol=0.02, atol=5e-3)
