"""The norm of a kernel: that of the layer, to six digits, whatever the array."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import spectralclip as sc
from oracle import dense_norm


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("stride", [1, 2])
def test_is_the_norm_of_the_layer(padding_mode: str, stride: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3, stride, 1, padding_mode=padding_mode)
    truth = dense_norm(conv, (3, 10, 10))
    kernel = conv.weight.detach().numpy()
    options = {"stride": stride, "padding": 1, "padding_mode": padding_mode}
    found = sc.kernel_norm(kernel, (3, 10, 10), **options)
    assert isinstance(found, float)
    assert found == pytest.approx(truth, rel=1e-6)
    last = np.moveaxis(kernel, (0, 1), (-1, -2))
    assert sc.kernel_norm(last, (3, 10, 10), layout="HWIO", **options) == pytest.approx(found)


def test_a_transposed_layer_by_the_one_that_it_transposes() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    out_shape = tuple(layer(torch.zeros(1, 4, 5, 5)).shape[1:])
    found = sc.kernel_norm(layer.weight.detach(), out_shape, stride=2, padding=1, groups=2)
    assert found == pytest.approx(dense_norm(layer, (4, 5, 5)), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_any_scale_in_float32(scale: float) -> None:
    kernel = np.random.default_rng(0).standard_normal((8, 8, 3, 3))
    small = (scale * kernel).astype(np.float32)
    truth = sc.kernel_norm(kernel, (8, 12, 12), padding=1)
    assert sc.kernel_norm(small, (8, 12, 12), padding=1) == pytest.approx(scale * truth, rel=1e-6)


def test_a_loose_tolerance_comes_from_below() -> None:
    kernel = np.random.default_rng(0).standard_normal((8, 8, 3, 3))
    loose = sc.kernel_norm(kernel, (8, 12, 12), padding=1, tol=0.1)
    assert loose <= sc.kernel_norm(kernel, (8, 12, 12), padding=1) * (1 + 1e-12)
    with pytest.raises(ValueError, match="tol must be a positive number"):
        sc.kernel_norm(kernel, (8, 12, 12), tol=0)
