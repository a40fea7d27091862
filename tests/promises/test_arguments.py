"""Arguments that the library fills in, and numbers of other packages."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import spectralclip as sc
from spectralclip import methods

KNOWN: dict[str, Any] = {
    "linear": lambda: nn.Linear(5, 4),
    "sequential": lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)),
    "list": lambda: [nn.Linear(5, 4), nn.BatchNorm1d(4)],
    "nested": lambda: [nn.Sequential(nn.Linear(5, 4)), nn.Identity()],
    "embedding": lambda: nn.Embedding(5, 4),
}


@pytest.mark.parametrize("name", KNOWN)
def test_in_shape_may_be_left_out_where_the_layer_knows_it(name: str) -> None:
    torch.manual_seed(0)
    layer = KNOWN[name]()
    assert torch.equal(sc.svds(layer).S, sc.svds(layer, (5,)).S)
    assert torch.equal(sc.svds(layer, k=2).S, sc.svds(layer, 5, 2).S)
    assert sc.spectral_norm(layer) == sc.spectral_norm(layer, (5,))
    assert torch.equal(sc.singular_values(layer), sc.singular_values(layer, (5,)))
    assert sc.norm_bounds(layer) == sc.norm_bounds(layer, (5,))
    assert sc.as_operator(layer).in_shape == (5,)
    sc.check_affine(layer)
    if name != "sequential":  # one weight moves
        sc.set_spectrum_(layer, None, sc.svds(layer, k=1), lambda S: 2 * S)
    assert sc.clip_(layer, max_norm=0.1).norm_after <= 0.1 * 1.001


def test_an_operator_knows_its_shape() -> None:
    op = sc.as_operator(nn.Conv2d(2, 3, 3), (2, 6, 6))
    assert sc.as_operator(op) is op
    assert torch.equal(sc.svds(op, k=2).S, sc.svds(op, (2, 6, 6), 2).S)
    assert sc.norm_bounds(op).upper >= float(sc.spectral_norm(op))


@pytest.mark.parametrize(
    "call",
    [
        sc.svds,
        sc.spectral_norm,
        sc.singular_values,
        sc.as_operator,
        sc.check_affine,
        lambda layer: sc.clip_(layer, max_norm=1.0),
    ],
)
def test_in_shape_is_asked_for_where_it_is_not_known(call: Any) -> None:
    conv = nn.Conv2d(2, 3, 3)
    before = conv.weight.detach().clone()
    with pytest.raises(ValueError, match=r"Conv2d\(2, 3.*give in_shape"):
        call(conv)
    assert torch.equal(conv.weight, before)


def test_the_default_number_of_values_is_capped() -> None:
    assert sc.svds(nn.Linear(3, 3), 3).S.shape == (3,)
    assert sc.svds(nn.Linear(30, 2)).S.shape == (2,)
    assert sc.svds(nn.Linear(30, 20)).S.shape == (6,)
    with pytest.raises(ValueError, match=r"k=6 is out of range.*k <= 3"):
        sc.svds(nn.Linear(3, 3), 3, 6)


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
        lambda: sc.attach(
            model, optimizer, torch.zeros(1, 6), method=methods.SpectralClip(), max_norm=bound
        ),
        lambda: methods.paper_clip_(layer, (6,), bound),
    ):
        with pytest.raises(ValueError, match=r"max_norm.*must be a positive number"):
            call()
    assert torch.equal(layer.weight, before)


# --- Seeds, generators and bounds that are none --------------------------------------------------


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


def test_layers_made_in_inference_mode() -> None:
    with torch.inference_mode():
        layer = nn.Linear(3, 3)
        found = sc.svds(layer, 3, 1)
    true = torch.linalg.matrix_norm(layer.weight.detach().double(), 2)
    assert float(found.S[0]) == pytest.approx(float(true), rel=1e-3)


def test_arguments_in_the_order_of_before_are_told() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(TypeError, match=r"attach takes \(model, optimizer, example_inputs"):
        sc.attach(methods.SpectralClip(), model, torch.zeros(1, 3))  # type: ignore[arg-type]
