"""Layers as affine functions: their precision, their offset, and what they may write into."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spectralclip as sc
from oracle import dense_matrix
from spectralclip import as_operator


def test_default_dtype_is_for_layers_without_parameters() -> None:
    pool = nn.AvgPool2d(2)
    assert as_operator(pool, (1, 4, 4)).dtype == torch.float32
    assert as_operator(pool, (1, 4, 4), dtype=torch.float64).dtype == torch.float64
    linear = nn.Linear(3, 2)
    torch.set_default_dtype(torch.float64)
    try:
        assert as_operator(pool, (1, 4, 4)).dtype == torch.float64
        assert as_operator(linear, (3,)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_double_precision_can_be_asked_for() -> None:
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    op = as_operator(layer, (2, 6, 6), dtype=torch.float64)
    assert op.to_dense().dtype == torch.float64
    layer.double().eval()
    np.testing.assert_allclose(op.to_dense().numpy(), dense_matrix(layer, (2, 6, 6)), atol=1e-14)


def test_large_offset_does_not_drown_the_linear_part(generator: torch.Generator) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) + 1e4

    layer = Shifted()
    op = as_operator(layer, (2, 6, 6))
    x = torch.randn(2, 6, 6, generator=generator)
    x /= x.norm()
    expected = F.conv2d(x[None], layer.conv.weight)[0]
    assert (op.matvec(x) - expected).norm() <= 1e-3 * expected.norm()


def test_a_layer_that_works_in_place_does_no_harm() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2).add_(1)

    x = torch.ones(1, 40)
    op = sc.as_operator(InPlace(), (40,))
    torch.testing.assert_close(op.matvec(x), 2 * torch.ones(1, 40))
    torch.testing.assert_close(op.gram(x), 4 * torch.ones(1, 40))
    assert bool((x == 1).all())
    assert float(sc.spectral_norm(InPlace(), (40,))) == pytest.approx(2)


def test_an_output_that_is_not_real_is_refused() -> None:
    with pytest.raises(ValueError, match=r"complex64, expected a real"):
        sc.svds(torch.fft.fft, (8,), 1)


def test_an_output_that_is_no_tensor_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"it made tuple\. Give a function .* find_layers"):
        sc.spectral_norm(nn.LSTM(5, 2), (5,))


def test_a_tensor_in_place_of_a_layer_is_named_by_its_shape() -> None:
    kernel = torch.zeros(4, 3, 3, 3)
    with pytest.raises(TypeError, match=r"got a Tensor of shape \(4, 3, 3, 3\): .* kernel_norm"):
        as_operator(kernel, (3, 8, 8))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got a Tensor of shape \(1, 3, 8, 8\)"):
        as_operator(nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8))  # type: ignore[arg-type]
