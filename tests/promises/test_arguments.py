"""Arguments that the library fills in, and numbers of other packages."""

from __future__ import annotations

from typing import Any

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
