"""Direct decompositions of layers of a real size, against Fourier and against their matrix."""

from __future__ import annotations

import numpy as np
from spectrum_cases import assert_values, flat
from torch import nn

import spectralclip as sc
from oracle import symbol_values
from spectralclip import Exact, Lanczos, svds


def test_large_circular_convolution_against_fourier() -> None:
    conv = nn.Conv2d(8, 12, 5, padding=2, padding_mode="circular")
    expected = symbol_values(conv, (30, 26))
    values = sc.singular_values(conv, (8, 30, 26))
    np.testing.assert_allclose(values.numpy(), expected, rtol=0, atol=1e-5 * expected[0])
    for solver in ("auto", Lanczos(), Exact()):
        found = svds(conv, (8, 30, 26), 5, solver=solver)
        assert_values(found.S, expected[:5], 1e-3)
        assert found.converged


def test_large_1x1_convolution_is_its_matrix_many_times() -> None:
    conv = nn.Conv2d(40, 30, 1)
    matrix = conv.weight.detach().double().numpy()[:, :, 0, 0]
    expected = np.repeat(np.linalg.svd(matrix, compute_uv=False), 400)
    values = sc.singular_values(conv, (40, 20, 20))
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-5 * expected[0])
    for solver in ("auto", Lanczos(), Exact()):
        found = svds(conv, (40, 20, 20), 3, solver=solver)
        assert_values(found.S, expected[:3], 1e-3)
        rows = flat(found.V)
        np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-5)
    many = svds(conv, (40, 20, 20), 30, solver=Lanczos())  # of a block that is wide
    assert_values(many.S, expected[:30], 1e-3)
