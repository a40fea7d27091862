"""How far a layer moves when its weight moves: in closed form, and by probing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import Residual, reference
from clip_cases import conv2d, named, probe
from torch import nn
from untouched import assert_same, state

import spectralclip as sc
from oracle import dense_matrix
from spectralclip._clipping import metric as _metric
from spectralclip._clipping.metric import PlainMetric
from spectralclip._clipping.set_spectrum import set_spectrum_
from spectralclip._operators.maps import ConvGeometry, ConvMap


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_metric_is_the_frobenius_norm(mode: str, stride: int, dilation: int) -> None:
    conv = conv2d(2, 3, stride=stride, dilation=dilation, padding=2, padding_mode=mode, seed=stride)
    geometry = ConvGeometry((stride,) * 2, (dilation,) * 2, (2, 2), (2, 2), 1, mode)
    map_ = ConvMap(conv.weight.detach(), geometry, (2, 7, 6), channels_last=False)
    metric = PlainMetric(map_)
    expected = np.linalg.norm(dense_matrix(conv, (2, 7, 6)))
    assert metric.norm(conv.weight.detach()) == pytest.approx(expected, rel=1e-6)
    back = metric.apply(metric.solve(conv.weight.detach().double()))
    torch.testing.assert_close(back, conv.weight.detach().double())


def test_probed_metric_agrees_with_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in named("conv2d-reflect-stride", "bn-conv-bn", "bn-transposed", "batch-norm2d"):
        results = []
        for closed in (True, False):
            layer = reference(one)
            if not closed:
                monkeypatch.setattr(_metric, "plain_weight", lambda *_: None)
            spectrum = sc.svds(layer, one.in_shape, 4, solver=sc.Exact())
            unmet = set_spectrum_(layer, one.in_shape, spectrum, lambda S: S / 3)
            results.append((unmet, dense_matrix(layer, one.in_shape)))
        monkeypatch.undo()
        assert results[0][0] == pytest.approx(results[1][0], abs=1e-6)
        np.testing.assert_allclose(results[0][1], results[1][1], rtol=0, atol=1e-8)


def test_unfinished_conjugate_gradients_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    probe(monkeypatch, most_iterations=1)
    layer = Residual(nn.Conv2d(2, 2, 3, padding=1))
    spectrum = sc.svds(layer, (2, 5, 5), 3)
    before = state(layer)
    with pytest.raises(ValueError, match="did not reach"):
        set_spectrum_(layer, (2, 5, 5), spectrum, spectrum.S / 2)
    assert_same(before, state(layer))
