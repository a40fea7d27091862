"""Subspaces that grow: values that occur several times, and many of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import linear_with_values, with_weight
from seeds import seeded
from spectrum_cases import SOLVERS, assert_honest, assert_triplets, assert_values
from torch import nn

import spectralclip as sc
from oracle import dense_matrix
from spectralclip import Lanczos, svds


@pytest.mark.parametrize("solver", SOLVERS)
def test_repeated_values_are_counted_as_often_as_they_occur(solver: str) -> None:
    with seeded(0):
        values = [3.0] * 5 + [2.0] * 10 + [1.0 / (1 + i) for i in range(60)]
        layer = linear_with_values(values, 120, 100).float()
    found = svds(layer, (100,), 8, solver=SOLVERS[solver])
    assert_values(found.S, np.array([3.0] * 5 + [2.0] * 3), 1e-3)
    assert_triplets(found, layer.weight.detach().double().numpy(), 8, 1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
def test_identical_channels_repeat_every_value(solver: str, mode: str) -> None:
    with seeded(1):
        layer = nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode=mode)
        with_weight(layer, layer.weight[:1].expand(4, 1, 3, 3).clone())
    matrix = dense_matrix(layer.double(), (4, 6, 6))
    found = svds(layer.float(), (4, 6, 6), 8, solver=SOLVERS[solver])
    assert_triplets(found, matrix, 8, 1e-3)
    np.testing.assert_allclose(found.S[:4].numpy(), float(found.S[0]), rtol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_values_beyond_the_rank_are_zero(solver: str, rank: int) -> None:
    with seeded(rank):
        layer = linear_with_values([float(rank - i) for i in range(rank)], 90, 110).float()
    found = svds(layer, (110,), 6, solver=SOLVERS[solver])
    assert_triplets(found, layer.weight.detach().double().numpy(), 6, 1e-3)
    assert float(found.S[rank:].max()) <= 1e-4 * rank


def test_many_values_to_an_odd_tolerance() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 6, 3, padding=1)
    matrix = sc.as_operator(layer, (6, 12, 12), dtype=torch.float64).to_dense().numpy()
    expected = np.linalg.svd(matrix, compute_uv=False)[:50]
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        found = svds(layer, (6, 12, 12), 50, tol=8.6e-4, solver=Lanczos(), generator=generator)
        assert found.converged
        assert_honest(found, expected, 8.6e-4)
