"""Tensors and their memory: what is written into, and who sees it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle.slopes import Function, largest_slope, pair_slopes
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.recording import entries_apart


def added_in_place(x: Tensor) -> Tensor:
    y = 2 * x
    y += 3 * F.relu(x)
    return F.relu_(y)


def first_column_zeroed(x: Tensor) -> Tensor:
    y = 2 * x
    y[:, 0] = 0.0
    return y


def column_copied(x: Tensor) -> Tensor:
    y = 3 * x
    y[:, 0] = 4 * F.relu(x[:, 1])
    return y


def filled_by_parts(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 6, dtype=x.dtype)
    out[:, :2] = 3 * x[:, :2]
    out[:, 4:] = 4 * F.relu(x[:, 2:])
    return out


def bent_through_a_view(x: Tensor) -> Tensor:
    y = 2 * x
    y.view(-1).mul_(5)
    return y


def bent_through_detached_data(x: Tensor) -> Tensor:
    y = 2 * x
    y.data.mul_(5)
    return y


def scaled_part(x: Tensor) -> Tensor:
    y = 2 * x
    y[:, 1:] *= 5
    return y


def scattered_in_place(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y.index_put_((torch.arange(len(x)), torch.ones(len(x), dtype=torch.long)), 7 * x[:, 0])
    return y


def overwritten(x: Tensor) -> Tensor:
    y = 100 * x
    y.copy_(3 * x)
    return y


def written_over_garbage(x: Tensor) -> Tensor:
    y = torch.full_like(x, math.nan)
    y.copy_(3 * x)
    return y


def given_shape_alone(x: Tensor) -> Tensor:
    return torch.zeros_like(100 * x) + torch.full_like(x, 3.0) + 2 * x


IN_PLACE: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "added": (added_in_place, 5.0),
    "zeroed": (first_column_zeroed, 2.0),
    "copied": (column_copied, 5.0),
    "filled": (filled_by_parts, 5.0),
    "view": (bent_through_a_view, 10.0),
    "data": (bent_through_detached_data, 10.0),
    "part": (scaled_part, math.hypot(2, 10)),
    "scattered": (scattered_in_place, 7.0),
    "overwritten": (overwritten, 3.0),
    "garbage": (written_over_garbage, 3.0),
    "shape": (given_shape_alone, 2.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_in_place_are_followed(name: str) -> None:
    function, upper = IN_PLACE[name]
    model = Function(function)
    bound = lipschitz_bounds(model, torch.ones(1, 4), local=False)
    assert bound.unbounded == ()
    assert bound.upper == pytest.approx(upper, rel=1e-4)
    assert largest_slope(model, (4,), 2000) <= bound.upper * (1 + 1e-9)


def test_a_value_is_read_as_it_was_at_that_time() -> None:
    def function(x: Tensor) -> Tensor:
        y = 2 * x
        kept = y + 0
        y.mul_(10)
        return F.relu(kept)

    assert lipschitz_bounds(Function(function), torch.ones(1, 4)).upper == pytest.approx(2)


def test_an_expanded_alias_of_written_memory_is_not_guessed() -> None:
    def function(x: Tensor) -> Tensor:
        y = 2 * x
        wide = y[:, :1].expand(-1, 4)
        y[:, 0] = F.relu(3 * x[:, 1])
        return wide + 0

    bound = lipschitz_bounds(Function(function), torch.ones(1, 4), local=False)
    assert math.isinf(bound.upper) and "cannot be followed" in bound.unbounded[0].reason


def test_out_arguments_are_not_guessed() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.sin(5 * x, out=out)
        return out

    bound = lipschitz_bounds(Function(function), torch.ones(1, 4), local=False)
    assert math.isinf(bound.upper) and bound.unbounded[0].operation == "sin"


def test_what_a_layer_writes_into_its_buffer_is_not_taken_for_a_constant() -> None:
    class Keeps(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("last", torch.zeros(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.last.copy_(x[:1])
            return super().forward(x)

    layer = Keeps()
    model = Function(lambda x, f: f(x) + 100 * f.last, layer)
    assert math.isinf(lipschitz_bounds(model, torch.ones(1, 4), local=False).upper)
    assert float(layer.last.sum()) == 0


def test_entries_of_views_are_told_apart_from_repeated_ones() -> None:
    x = torch.zeros(4, 6)
    assert entries_apart(x) and entries_apart(x.t()) and entries_apart(x[1:, ::2])
    assert not entries_apart(x[:1].expand(3, 6)) and not entries_apart(x.as_strided((3, 3), (1, 1)))
    assert entries_apart(x[:1].expand(1, 6)) and entries_apart(torch.tensor(1.0))


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
