"""Entries that are used several times, or reached by their address: never taken for fewer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oracle.slopes import Function, pair_slopes
from spectralclip._lipschitz.bounds import lipschitz_bounds

aten = torch.ops.aten
ZEROS = torch.zeros(16, dtype=torch.long)
X = torch.randn(1, 4, generator=torch.Generator().manual_seed(3))


def bent_view_beside(x: Tensor) -> Tensor:
    y = 1000 * x
    view = y[:, :2]
    view.tanh_()
    return view.as_strided((1, 2), (4, 1), 2)


def bent_view_around(x: Tensor) -> Tensor:
    y = 1000 * x
    view = y[:, 1:3]
    view.tanh_()
    return view.as_strided((1, 4), (4, 1), 0)


def restrided_in_place(x: Tensor) -> Tensor:
    y = 3 * x
    return y.as_strided_((4, 4), (0, 1), 0)


def windows_scaled_in_place(x: Tensor) -> Tensor:
    y = x.clone().flatten()
    y.unfold(0, 3, 1).mul_(2.0)  # in turn, so that entries in three windows grow eightfold
    return y


def windows_bent_in_place(x: Tensor) -> Tensor:
    y = x.clone().flatten()
    windows = y.as_strided((3, 2), (1, 1))
    windows.add_(windows, alpha=3.0)
    return F.relu(y)


HOLES: dict[str, Callable[[Tensor], Tensor]] = {
    "embedding": lambda x: F.relu(F.embedding(ZEROS, x.T) - 9),
    "embedding, padded": lambda x: F.embedding(ZEROS, x.T, padding_idx=0),
    "embedding, by frequency": lambda x: F.embedding(ZEROS, x.T, scale_grad_by_freq=True),
    "view beside": bent_view_beside,
    "view around": bent_view_around,
    "view in place": restrided_in_place,
    "alias": lambda x: aten._reshape_alias(x, (3, 4), (0, 1)),
    "windows, scaled": windows_scaled_in_place,
    "windows, bent": windows_bent_in_place,
    "elu": lambda x: aten.elu(x, 1.0, 1.0, -1.0),
}


@pytest.mark.parametrize("name", HOLES)
def test_no_slope_is_above_the_bound(name: str) -> None:
    model = Function(HOLES[name])
    bound = lipschitz_bounds(model, X, local=False)
    assert pair_slopes(model, (4,), 400) <= bound.upper * (1 + 1e-9)


@pytest.mark.parametrize(("name", "truth"), [("embedding", 4.0), ("embedding, padded", 4.0)])
def test_copies_are_counted(name: str, truth: float) -> None:
    bound = lipschitz_bounds(Function(HOLES[name]), X, local=False)
    assert bound.upper == pytest.approx(truth, rel=1e-9)


STRIDED: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "rows twice": (lambda x: x.as_strided((2, 4), (0, 1)), math.sqrt(2)),
    "windows": (lambda x: x.as_strided((2, 3), (1, 1)), math.sqrt(2)),
    "of a transpose": (lambda x: (3 * x.reshape(2, 2)).t().as_strided((4,), (1,)), 3.0),
    "of a part": (lambda x: x[:, 1:].as_strided((2,), (2,), 1), 1.0),
    "alias": (HOLES["alias"], math.sqrt(3)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_a_view_by_address_within_its_argument_is_followed(name: str) -> None:
    function, truth = STRIDED[name]
    bound = lipschitz_bounds(Function(function), X, local=False)
    assert bound.unbounded == () and bound.upper == pytest.approx(truth, rel=1e-9)


def test_a_view_by_address_is_replayed_as_the_entries_that_it_took() -> None:
    # Of the transpose, the first two places in memory are the first column, not the first row.
    def function(x: Tensor) -> Tensor:
        y = (x * torch.tensor([[1.0, 10.0, 100.0, 1000.0]]).to(x)).reshape(2, 2).t()
        return y.as_strided((2,), (1,)) + y[:, 0]

    bound = lipschitz_bounds(Function(function), X, local=False)
    assert bound.upper == pytest.approx(20.0, rel=1e-6)


def test_dropout_that_trains_is_drawn_at_random() -> None:
    for train in (True, None):
        model = Function(lambda x, train=train: aten.native_dropout(x, 0.5, train)[0])
        bound = lipschitz_bounds(model, X, local=False)
        assert math.isinf(bound.upper) and "at random" in bound.unbounded[0].reason
    still = Function(lambda x: aten.native_dropout(x, 0.5, False)[0])
    assert lipschitz_bounds(still, X, local=False).upper == 1.0


def test_what_an_operation_enlarges_is_not_taken_for_what_it_was() -> None:
    def function(x: Tensor) -> Tensor:
        y = 1000 * x
        first, second = torch.ones(1, 2, 1).to(x), torch.ones(1, 1, 2).to(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            aten.addbmm_(y[:, :2], first, second)  # which writes over all four
        return y

    bound = lipschitz_bounds(Function(function), X, local=False)
    assert math.isinf(bound.upper) and "cannot be followed" in bound.unbounded[0].reason


def test_a_batch_norm_that_updates_its_statistics_uses_those_of_its_input() -> None:
    def function(x: Tensor) -> Tensor:
        mean, variance = torch.zeros(2).to(x), torch.ones(2).to(x)
        made = aten._batch_norm_with_update(x.reshape(2, 2), None, None, mean, variance, 0.1, 1e-4)
        return made[0]

    bound = lipschitz_bounds(Function(function), X, local=False)
    assert bound.upper == pytest.approx(100.0)
