"""What is said of a bound, and the radius that it certifies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from zoo import BY_NAME

from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.result import NetworkBound, certified_radius


def test_the_certified_radius_is_the_margin_over_root_two_times_the_constant() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 5.0, 5.0]])
    assert certified_radius(logits, 2.0).tolist() == pytest.approx([2 / (2 * math.sqrt(2)), 0])
    assert certified_radius(logits, math.inf).tolist() == [0, 0]
    assert certified_radius(logits, 0.0).tolist() == [math.inf, 0]
    bound = NetworkBound(lower=1.0, upper=4.0, failure=0.0, product=8.0)
    assert torch.equal(certified_radius(logits, bound), certified_radius(logits, 4.0))
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="not negative"):
            certified_radius(logits, bad)
    with pytest.raises(ValueError, match="two classes"):
        certified_radius(torch.zeros(3, 1), 1.0)


def test_no_input_within_the_radius_is_classified_otherwise() -> None:
    model = BY_NAME["mlp"].model().double()
    x = BY_NAME["mlp"].inputs(20, seed=4).double()
    with torch.no_grad():
        logits = model(x)
        radius = certified_radius(logits, lipschitz_bounds(model, x, local=False))
        for seed in range(50):
            move = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
            move *= radius[:, None, None, None] / move.flatten(1).norm(dim=1)[:, None, None, None]
            assert torch.equal(model(x + 0.999 * move).argmax(1), logits.argmax(1))


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


def test_integer_logits_have_a_radius() -> None:
    logits = torch.tensor([[3, 1, 0], [0, 5, 5]])
    assert certified_radius(logits, 0.0).tolist() == [math.inf, 0]
    assert certified_radius(logits, 2.0).tolist() == pytest.approx([2 / (2 * math.sqrt(2)), 0])
