"""Bounds, seeds and generators as they may be given, wherever the library takes them."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import spectralclip as sc
from spectralclip import methods

NUMBERS = [
    np.float32(0.5),
    np.float64(0.5),
    np.array(0.5),
    torch.tensor(0.5),
    torch.tensor(0.5, dtype=torch.bfloat16),
    nn.Parameter(torch.tensor(0.5)),
]


NO_BOUNDS = [0, -1.0, float("nan"), np.inf, True, "1", None, np.ones(2), torch.ones(1), 1j]


@pytest.mark.parametrize("bound", NUMBERS, ids=repr)
def test_bounds_of_numpy_and_torch(bound: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    x = torch.zeros(2, 6)
    assert sc.clip_(nn.Linear(6, 6), max_norm=bound).norm_after <= 0.5005
    assert methods.paper_clip_(nn.Linear(6, 6), (6,), bound, lr=0.1).norm_after > 0
    by_name = sc.clip_model_(model, x, max_norm={"0": bound})
    assert by_name["0"].norm_after <= 0.5005
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = sc.attach(model, optimizer, x, method=methods.SpectralClip(), max_norm=bound)
    assert attachment.max_norms == {"0": 0.5, "2": 0.5}
    attachment.remove()
    results = sc.clip_model_(model, x, max_norm=lambda name, layer: bound)
    assert all(one.norm_after <= 0.5005 for one in results.values())


@pytest.mark.parametrize("bound", NO_BOUNDS, ids=repr)
def test_what_is_no_bound_is_refused_before_anything_changes(bound: Any) -> None:
    layer = nn.Linear(6, 6)
    model, before = nn.Sequential(layer), layer.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for call in (
        lambda: sc.clip_(layer, max_norm=bound),
        lambda: sc.clip_model_(model, torch.zeros(1, 6), max_norm=bound),
        lambda: sc.clip_model_(model, torch.zeros(1, 6), max_norm={"0": bound}),
        lambda: sc.attach(model, optimizer, torch.zeros(1, 6), max_norm={"0": bound}),
        lambda: methods.paper_clip_(layer, (6,), bound),
    ):
        with pytest.raises(ValueError, match=r"max_norm.*must be a positive number"):
            call()
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("seed", [None, 1.5, True, "a", torch.tensor(3)])
def test_a_seed_is_an_integer(seed: Any) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.zeros(1, 3)
    for call in (
        lambda: sc.lipschitz_bounds(model, x, seed=seed),
        lambda: sc.audit(model, x, seed=seed),
        lambda: sc.attach(model, None, x, seed=seed),
    ):
        with pytest.raises(TypeError, match="seed must be an integer"):
            call()
    with pytest.raises(ValueError, match="seed must be between"):
        sc.audit(model, x, seed=2**70)
    assert sc.lipschitz_bounds(model, x, seed=np.int64(3)).upper < math.inf  # type: ignore[arg-type]


def test_a_generator_is_one() -> None:
    layer, three = nn.Linear(3, 3), cast(Any, 3)
    for call in (
        lambda: sc.svds(layer, 3, generator=three),
        lambda: sc.norm_bounds(layer, 3, generator=three),
        lambda: sc.clip_(layer, 3, generator=three),
    ):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got 3"):
            call()


@pytest.mark.parametrize("bound", [1e39, 1e-40, 1e300])
def test_bounds_beyond_single_precision_are_refused(bound: float) -> None:
    layer = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="max_norm must lie between 1e-30 and 1e"):
        sc.clip_(layer, 3, bound)
    with pytest.raises(ValueError, match="max_norm must lie between 1e-30 and 1e"):
        sc.attach(nn.Sequential(layer), None, torch.zeros(1, 3), max_norm=bound)
