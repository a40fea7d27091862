"""What is said of a bound."""

from __future__ import annotations

import torch
from torch import nn

from spectralclip._lipschitz.bounds import lipschitz_bounds


def test_a_bound_is_printed_on_less_than_a_screen() -> None:
    layers = [
        part for _ in range(30) for part in (nn.Linear(4, 4), nn.Mish(), nn.GLU(), nn.Linear(2, 4))
    ]
    bounds = [
        lipschitz_bounds(nn.Sequential(*layers), torch.randn(9, 4)),
        lipschitz_bounds(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(1, 4)),
    ]
    for bound in bounds:
        text = str(bound).splitlines()
        assert len(text) <= 24 and max(map(len, text)) <= 100
        assert len(repr(bound)) <= 200 and "\n" not in repr(bound)
    assert "no upper bound" in str(bounds[0]) and "and 24 more, in .unbounded" in str(bounds[0])
    assert f"at most {bounds[1].upper:.6g}" in str(bounds[1])
