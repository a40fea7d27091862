"""What tests of clipping share: small layers, and looking at their weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import CASES, HALF_CASES, Case, case, modules
from seeds import seeded
from torch import nn

from spectralclip._clipping import metric as _metric


def conv2d(c_in: int, c_out: int, kernel: int = 3, *, seed: int = 0, **options: Any) -> nn.Conv2d:
    with seeded(seed):
        options.setdefault("padding", kernel // 2)
        return nn.Conv2d(c_in, c_out, kernel, bias=False, **options)


def trained_batch_norm(channels: int) -> nn.BatchNorm2d:
    bn = nn.BatchNorm2d(channels)
    generator = torch.Generator().manual_seed(0)
    for tensor in (bn.weight.data, bn.running_var):
        tensor.copy_(torch.rand(channels, generator=generator) + 0.5)
    bn.weight.data[0] = 0.0  # a dead channel: the convolution's part stays as it was
    return bn


def snapshot(layer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for module in modules(layer) for p in module.parameters()]


SMALL_CONVOLUTIONS = {
    "zeros": (lambda: conv2d(3, 4), (3, 6, 6)),
    "circular": (lambda: conv2d(3, 4, padding_mode="circular"), (3, 6, 6)),
    "reflect": (lambda: conv2d(3, 4, padding_mode="reflect"), (3, 6, 6)),
    "replicate-stride": (lambda: conv2d(3, 4, stride=2, padding_mode="replicate"), (3, 7, 7)),
    "dilated": (lambda: conv2d(2, 2, dilation=2, padding=2), (2, 8, 8)),
    "groups": (lambda: conv2d(4, 4, groups=2), (4, 6, 6)),
    "conv-bn": (
        lambda: nn.Sequential(conv2d(3, 4), nn.BatchNorm2d(4)).requires_grad_(False),
        (3, 6, 6),
    ),
}


MORE = [
    # The factors of the norm are those of entries, not of channels.
    case(
        "conv-flatten-bn",
        lambda: [nn.Conv2d(2, 2, 3), nn.Flatten(), nn.BatchNorm1d(18)],
        *(2, 5, 5),
    ),
    case("bn-conv-flatten", lambda: [nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3), nn.Flatten()], 2, 5, 5),
]


def named(*names: str) -> list[Case]:
    return [next(c for c in CASES + HALF_CASES + MORE if c.name == name) for name in names]


def probe(monkeypatch: pytest.MonkeyPatch, **changed: int) -> None:
    monkeypatch.setattr(_metric, "PROBING", _metric.PROBING._replace(**changed))
