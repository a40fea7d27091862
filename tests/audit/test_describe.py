"""Layers in plain words: geometry, compensation, and remarks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from spectralclip._audit import LayerAudit, audit


def test_geometry_in_plain_words() -> None:
    conv = functools.partial(nn.Conv2d, 4, 8)
    cases = {
        "4 -> 8, 3x3, stride 2, padding 1 zeros": conv(3, 2, 1),
        "4 -> 8, 3x1, padding 1x0 reflect": conv((3, 1), padding=(1, 0), padding_mode="reflect"),
        "4 -> 8, 5x5, dilation 2, padding same zeros": conv(5, dilation=2, padding="same"),
        "4 -> 8, 1x1, 2 groups": conv(1, groups=2),
        "4 -> 8, 3x3, depthwise": conv(3, groups=4),
        "4 -> 3, 2x2 transposed, stride 2, output padding 1": nn.ConvTranspose2d(
            4, 3, 2, 2, output_padding=1
        ),
        "4 channels": nn.BatchNorm2d(4),
    }
    for words, layer in cases.items():
        (row,) = audit(layer, torch.zeros(1, 4, 12, 12), lipschitz=False).layers
        assert row.geometry == words
    (row,) = audit(nn.Linear(5, 3), torch.zeros(2, 7, 5), lipschitz=False).layers
    assert row.geometry == "5 -> 3" and row.in_shape == (5,) and row.out_shape == (3,)


def set_up_chain(conv_norms: Sequence[float], factors: Sequence[float]) -> LayerAudit:
    """A 1x1 convolution that stretches each channel so, and a batch norm behind it."""
    conv, bn = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.0)
    with torch.no_grad():
        conv.weight.copy_(torch.diag(torch.tensor(conv_norms))[:, :, None, None])
        bn.weight.copy_(torch.tensor(factors))
    chain = audit(nn.Sequential(conv, bn), torch.zeros(1, 2, 3, 3), lipschitz=False)["0+1"]
    assert chain.norm.upper == pytest.approx(
        max(a * b for a, b in zip(conv_norms, factors, strict=True)), rel=1e-5
    )
    return chain


@pytest.mark.parametrize(
    ("conv_norms", "factors", "compensates", "word"),
    [
        ((4.0, 0.5), (0.25, 2.0), True, "bound the chain as one"),
        ((1.0, 0.5), (3.0, 1.0), True, "batch norm undoes"),
        ((2.0, 0.5), (1.5, 1.0), False, "clip_"),
        ((1.0, 0.5), (0.9, 0.8), False, "Lengthens no difference"),
    ],
)
def test_compensation_is_flagged(
    conv_norms: tuple[float, float], factors: tuple[float, float], compensates: bool, word: str
) -> None:
    chain = set_up_chain(conv_norms, factors)
    assert chain.compensates is compensates
    assert word in chain.remark


@pytest.mark.parametrize(
    ("scale", "word"),
    [
        (0.0, "dead"),
        (0.01, "little of its input"),
        (0.5, "Lengthens no difference"),
        (1.01, "1 % at most"),
        (7.0, "clip_"),
        (900.0, "look at its weights"),
    ],
)
def test_remarks(scale: float, word: str) -> None:
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.eye(3))
    assert word in audit(layer, torch.zeros(1, 3), lipschitz=False)[""].remark


def test_remark_on_what_torch_would_leave() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")
    with torch.no_grad():
        conv.weight.copy_(torch.eye(2)[:, :, None, None].expand(2, 2, 3, 3))
    row = audit(conv, torch.zeros(1, 2, 6, 6), lipschitz=False)[""]
    assert row.norm.upper == pytest.approx(9) and row.reshaped_norm == pytest.approx(3)
    assert "would see 3 and so leave it 3 times too large" in row.remark
