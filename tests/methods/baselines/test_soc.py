"""Skew orthogonal convolutions: the exponential of the skew part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from orthogonal_cases import attached, circular, needs_package, package_soc
from scipy.linalg import expm
from torch import nn

from oracle import dense_matrix, dense_norm
from spectralclip.methods.baselines.soc import SOC


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_soc_is_the_exponential_of_the_skew_part(scale: float) -> None:
    conv = circular()
    with torch.no_grad():
        conv.weight.mul_(scale)
    matrix = dense_matrix(conv, (3, 5, 5))
    model, _ = attached(SOC(), conv, (3, 5, 5))
    expected = expm((matrix - matrix.T) / 2)
    np.testing.assert_allclose(dense_matrix(model, (3, 5, 5)), expected, atol=1e-12)


@needs_package
def test_soc_of_the_package() -> None:
    """Its exponential of a small skew-symmetric kernel, as one long explicit kernel."""
    weight = 0.02 * torch.randn(3, 3, 3, 3)
    with torch.no_grad():
        exponential = package_soc.ConvExponential(3, 3, 3, 1, exp_niter=6)
        kernel = exponential(package_soc.Skew(1)(weight))
    long = nn.Conv2d(3, 3, kernel.shape[-1], padding="same", padding_mode="circular", bias=False)
    conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
    with torch.no_grad():
        long.weight.copy_(kernel)
        conv.weight.copy_(2 * weight)
    model, _ = attached(SOC(), conv, (3, 9, 9))
    expected = dense_matrix(long.double(), (3, 9, 9))
    np.testing.assert_allclose(dense_matrix(model, (3, 9, 9)), expected, atol=1e-6)


@needs_package
def test_the_layer_of_the_package_for_soc_is_above_one() -> None:
    """One factor for each channel leaves nothing skew-symmetric, however many terms follow."""
    layer = package_soc.FastSOC(4, 4, 3, exp_params=package_soc.ExpParams(6)).double()
    assert dense_norm([layer], (4, 14, 14)) > 1.005


def test_half_of_the_parameters_of_soc_have_no_influence() -> None:
    layer = nn.Linear(4, 4, bias=False).double()
    model, _ = attached(SOC(), layer, (4,))
    before = dense_matrix(model, (4,))
    with torch.no_grad():
        change = torch.randn(4, 4).double()
        layer.weight.add_(change + change.T)
    np.testing.assert_allclose(dense_matrix(model, (4,)), before, atol=1e-12)
