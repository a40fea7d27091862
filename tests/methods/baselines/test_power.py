"""The power method with deflation: several values, their order, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import linear_with_values
from power_cases import PADDINGS
from spectrum_cases import UNCONVERGED
from torch import nn

from oracle import dense_matrix, singular_values
from spectralclip import svds
from spectralclip.methods import virmaux_svds


@pytest.mark.parametrize("mode", PADDINGS)
@UNCONVERGED
def test_several_values_and_their_vectors(mode: str) -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode).double()
    found = virmaux_svds(layer, (2, 5, 5), 4, power_iterations=400)
    matrix = dense_matrix(layer, (2, 5, 5))
    np.testing.assert_allclose(found.S.numpy(), singular_values(layer, (2, 5, 5))[:4], rtol=1e-3)
    U, V = (vectors.flatten(1).numpy() for vectors in (found.U, found.V))
    np.testing.assert_allclose(V @ V.T, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(U @ U.T, np.eye(4), atol=1e-10)
    S = found.S.numpy()
    for vector, left, value, residual in zip(V, U, S, found.residuals.numpy(), strict=True):
        parts = matrix @ vector - value * left, matrix.T @ left - value * vector
        assert np.hypot(*map(np.linalg.norm, parts)) == pytest.approx(residual, abs=1e-9)
        assert residual < 0.05


def test_repeated_values_are_all_found() -> None:
    layer = linear_with_values([3.0, 2.0, 2.0, 2.0, 1.0], 9, 7)
    found = virmaux_svds(layer, (7,), 6)
    np.testing.assert_allclose(found.S.numpy(), [3, 2, 2, 2, 1, 0], atol=1e-6)
    assert found.converged
    V = found.V.numpy()
    np.testing.assert_allclose(V @ V.T, np.eye(6), atol=1e-8)


def test_a_layer_that_is_zero() -> None:
    layer = linear_with_values([0.0], 4, 5)
    found = virmaux_svds(layer, (5,), 2)
    assert found.S.tolist() == [0, 0]
    assert found.V.flatten(1).norm(dim=1).tolist() == pytest.approx([1, 1])


@UNCONVERGED
def test_applications_are_those_of_the_layer() -> None:
    calls = [0]

    class Counting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls[0] += len(x)
            return super().forward(x)

    layer, counts = Counting(40, 40), []  # large enough for no start to settle in float32
    for iterations in (10, 25):
        calls[0] = 0
        found = virmaux_svds(layer, (40,), 2, power_iterations=iterations, tol=1e-12)
        assert found.num_matvecs == 2 * (2 * iterations + 2)
        counts.append(calls[0])
    assert counts[1] - counts[0] == 2 * 15  # and as many backward passes


@UNCONVERGED
def test_few_iterations_are_wrong_where_svds_is_right() -> None:
    """Its values lie close together, as in nearly every convolution."""
    layer = nn.Conv2d(4, 4, 3, padding=1)
    values = singular_values(layer, (4, 10, 10))[:8]
    ours = svds(layer, (4, 10, 10), 8)
    assert np.abs(ours.S.numpy() / values - 1).max() < 1e-3
    iterations = ours.num_matvecs // 16
    found = virmaux_svds(layer, (4, 10, 10), 8, power_iterations=iterations)
    assert np.abs(found.S.numpy() / values - 1).max() > 3e-3
    assert not found.converged and "svds" in found.advice


@UNCONVERGED
def test_values_come_in_order() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    S = virmaux_svds(layer, (4, 10, 10), 8, power_iterations=3).S.tolist()
    assert sorted(S, reverse=True) == S
