"""Rows of a weight as a dense layer: a view, which knows where it lies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn

from spectralclip import clip_, norm_bounds, set_spectrum_, svds
from spectralclip._operators import Place, Rows


def lstm() -> nn.LSTM:
    with seeded(0):
        return nn.LSTM(6, 5)


def forget(layer: nn.LSTM) -> Rows:
    return Rows(layer.weight_ih_l0, slice(5, 10), "weight_ih_l0[forget]", "LSTM")


def test_it_says_what_it_is_and_how_long_its_inputs_are() -> None:
    layer = lstm()
    assert repr(forget(layer)) == "Rows(weight_ih_l0[forget], 6 -> 5)"
    expected = torch.linalg.svdvals(layer.weight_ih_l0[5:10].detach().double())
    torch.testing.assert_close(svds(forget(layer), None, 5, tol=1e-6).S, expected.float())
    assert float(expected[0]) in norm_bounds(forget(layer))


def test_only_its_rows_are_clipped_bit_for_bit() -> None:
    layer, before = lstm(), lstm().weight_ih_l0.detach()
    result = clip_(forget(layer), None, 0.1)
    after = layer.weight_ih_l0.detach()
    assert result.converged and result.norm_after <= 0.1001
    assert torch.linalg.matrix_norm(after[5:10], 2) <= 0.1001
    assert torch.equal(after[:5], before[:5]) and torch.equal(after[10:], before[10:])
    nearest, singular, right = torch.linalg.svd(before[5:10], full_matrices=False)
    torch.testing.assert_close(after[5:10], nearest @ torch.diag(singular.clamp(max=0.1)) @ right)


@pytest.mark.parametrize("normed", [False, True])
def test_only_its_rows_get_other_singular_values(normed: bool) -> None:
    layer, before = lstm(), lstm().weight_ih_l0.detach()
    norm = nn.BatchNorm1d(5)
    assert norm.running_var is not None
    norm.running_var.copy_(torch.tensor([0.5, 1, 2, 3, 4]))
    part: list[nn.Module] = [forget(layer), norm] if normed else [forget(layer)]
    unmet = set_spectrum_(part, (6,), svds(part, (6,), k=5), lambda S: S / 2)
    after = layer.weight_ih_l0.detach()
    assert unmet < 1e-4
    torch.testing.assert_close(after[5:10], before[5:10] / 2)
    assert torch.equal(after[:5], before[:5]) and torch.equal(after[10:], before[10:])


def test_in_half_precision_the_other_rows_stay_as_they_are() -> None:
    layer = lstm().bfloat16()
    before = layer.weight_ih_l0.detach().clone()
    clip_(forget(layer), None, 0.1)
    after = layer.weight_ih_l0.detach()
    assert torch.linalg.matrix_norm(after[5:10].float(), 2) <= 0.1001
    assert torch.equal(after[:5], before[:5]) and torch.equal(after[10:], before[10:])


def test_it_can_be_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(forget(lstm())))
    assert torch.equal(again.weight, lstm().weight_ih_l0[5:10])


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        (lambda w: w, lambda w: w, True),
        (lambda w: w, lambda w: w[3:5], True),
        (lambda w: w[2:4], lambda w: w[3:5], True),
        (lambda w: w[2:4], lambda w: w[4:5], False),
        (lambda w: w, lambda w: copy.deepcopy(w), False),
        (lambda w: w.T[:2], lambda w: w[1:3], True),
    ],
)
def test_places_meet_where_memory_is_shared(first: object, second: object, meet: bool) -> None:
    weight: Tensor = torch.zeros(8, 3)
    one, other = (Place.of(view(weight)) for view in (first, second))  # type: ignore[operator]
    assert one.meets(other) is meet and other.meets(one) is meet
