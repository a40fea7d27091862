"""Convolutions of any geometry, drawn at random, against their dense matrices."""

from __future__ import annotations

from typing import Any

import drawn_convolutions
import numpy as np
import pytest
import torch
from drawn_convolutions import SAME_EVEN, convolutions, transposed_convolutions
from hypothesis import given, settings
from torch import nn

import spectralclip as sc
from oracle import dense_matrix, singular_values
from spectralclip import as_operator

EXAMPLES = settings(drawn_convolutions.EXAMPLES, max_examples=100)


def check(layer: Any, in_shape: tuple[int, ...]) -> None:
    """The matrix in both directions, both ways of applying it, and the whole spectrum."""
    rounding = 1e-12 if layer.weight.dtype == torch.float64 else 5e-6
    explicit = sc.as_operator(layer, in_shape)
    generic = sc.as_operator(layer, in_shape, explicit=False)
    values = sc.singular_values(layer, in_shape)

    matrix = dense_matrix(layer.double(), in_shape)
    expected = np.linalg.svd(matrix, compute_uv=False)
    scale = max(expected[0], 1e-30)
    for op in (explicit, generic):
        assert op.shape == matrix.shape
        m, n = op.shape
        # Each direction on its own: `to_dense` takes the shorter one.
        columns = op.matvec(torch.eye(n, dtype=op.dtype).reshape(n, *op.in_shape))
        rows = op.rmatvec(torch.eye(m, dtype=op.dtype).reshape(m, *op.out_shape))
        for got in (op.to_dense(), columns.reshape(n, m).T, rows.reshape(m, n)):
            np.testing.assert_allclose(got.double().numpy(), matrix, rtol=0, atol=rounding * scale)
        gram = op.gram(torch.eye(n, dtype=op.dtype).reshape(n, *op.in_shape)).reshape(n, n)
        np.testing.assert_allclose(
            gram.double().numpy(), matrix.T @ matrix, rtol=0, atol=rounding * scale**2
        )
    np.testing.assert_allclose(values.double().numpy(), expected, rtol=0, atol=rounding * scale)


def check_leading(layer: Any, in_shape: tuple[int, ...]) -> None:
    """The leading values, by iteration and as the library chooses."""
    norm = sc.spectral_norm(layer, in_shape)
    most = min(sc.as_operator(layer, in_shape).shape)
    found = [sc.svds(layer, in_shape, k, solver=sc.Lanczos()) for k in range(1, min(3, most) + 1)]
    expected = singular_values(layer.double(), in_shape)
    assert float(norm) == pytest.approx(expected[0], rel=1e-3)
    for k, spectrum in enumerate(found, 1):
        assert spectrum.converged
        np.testing.assert_allclose(
            spectrum.S.double().numpy(), expected[:k], rtol=0, atol=1e-3 * expected[0] + 1e-30
        )


@pytest.mark.slow
@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(1))
def test_conv1d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.slow
@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(1))
def test_conv1d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(2))
def test_conv2d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(2))
def test_conv2d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@pytest.mark.slow
@EXAMPLES
@given(transposed_convolutions(1))
def test_transposed1d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.slow
@EXAMPLES
@given(transposed_convolutions(1))
def test_transposed1d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@EXAMPLES
@given(transposed_convolutions(2))
def test_transposed2d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.slow
@EXAMPLES
@given(transposed_convolutions(2))
def test_transposed2d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_permuted_channels_permute_the_matrix(mode: str, generator: torch.Generator) -> None:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode=mode)
    rows = torch.randperm(6, generator=generator)
    columns = torch.randperm(4, generator=generator)
    permuted = nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode=mode)
    with torch.no_grad():
        permuted.weight.copy_(conv.weight[rows][:, columns])
    op, other = as_operator(conv, (4, 5, 6)), as_operator(permuted, (4, 5, 6))
    x = torch.randn(2, 4, 5, 6, generator=generator)
    torch.testing.assert_close(other.matvec(x[:, columns]), op.matvec(x)[:, rows])
    y = torch.randn(2, *op.out_shape, generator=generator)
    torch.testing.assert_close(other.rmatvec(y[:, rows]), op.rmatvec(y)[:, columns])


def test_transposed_convolution_is_the_adjoint_of_the_convolution() -> None:
    conv = nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False)
    transposed = nn.ConvTranspose2d(5, 3, 3, stride=2, padding=1, output_padding=1, bias=False)
    with torch.no_grad():
        transposed.weight.copy_(conv.weight)
    matrix = as_operator(conv, (3, 8, 8)).to_dense()
    torch.testing.assert_close(as_operator(transposed, (5, 4, 4)).to_dense(), matrix.T)
