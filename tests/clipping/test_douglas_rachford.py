"""Clipping on a torus, against a dense SVD."""

from __future__ import annotations

import pytest
import torch
from clip_cases import conv2d

from oracle import dense_norm
from spectralclip._clipping.douglas_rachford import TorusSymbols, clip_on_torus
from spectralclip._operators.maps import ConvGeometry, ConvMap


@pytest.mark.parametrize("stride", [1, 2])
def test_clipping_on_a_torus(stride: int) -> None:
    conv = conv2d(3, 4, stride=stride, padding_mode="circular")
    geometry = ConvGeometry((stride,) * 2, (1, 1), (1, 1), (1, 1), 1, "circular")
    map_ = ConvMap(conv.weight.detach(), geometry, (3, 8, 8), channels_last=False)
    symbols = TorusSymbols(map_, (8, 8))
    weight = conv.weight.detach()
    torch.testing.assert_close(symbols.adjoint(symbols.forward(weight)), symbols.gain * weight)
    bound = 0.6 * dense_norm(conv, (3, 8, 8))
    with torch.no_grad():
        conv.weight.copy_(clip_on_torus(map_, (8, 8), bound, 60).point)
    assert dense_norm(conv, (3, 8, 8)) == pytest.approx(bound, rel=5e-3)
