"""What models do with tensors besides layers: in place, through views, at random, and outside."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle.slopes import Function, jacobian_norms, largest_slope
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


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x * x.max().item(),
        lambda x: x * float(x.max()),
        lambda x: x * x.numpy().max().item(),
        lambda x: x * max(x.tolist()[0]),
    ],
    ids=["item", "float", "numpy", "tolist"],
)
def test_numbers_that_are_read_out_are_not_taken_for_constants(read: Any) -> None:
    bound = lipschitz_bounds(Function(read), torch.ones(1, 4), local=False)
    assert math.isinf(bound.upper)
    assert "read out" in bound.unbounded[-1].reason


def test_a_decision_is_noted_and_the_way_taken_is_bounded() -> None:
    model = Function(lambda x: 2 * x if bool((x > 0).any()) else 3 * x)
    bound = lipschitz_bounds(model, torch.ones(1, 4))
    assert bound.upper == pytest.approx(2)
    assert any("way taken" in step.note for step in bound.steps)


def test_noise_that_is_added_is_a_constant_and_a_random_factor_is_not() -> None:
    state = torch.get_rng_state()
    added = Function(lambda x: 2 * x + torch.randn_like(x))
    assert lipschitz_bounds(added, torch.ones(1, 4)).upper == pytest.approx(2)
    for function in (lambda x: x * torch.rand_like(x), lambda x: F.dropout(x, 0.5, training=True)):
        bound = lipschitz_bounds(Function(function), torch.ones(1, 4), local=False)
        assert math.isinf(bound.upper) and "at random" in bound.unbounded[0].reason
    assert torch.equal(torch.get_rng_state(), state)


def test_scripted_parts_are_followed_inside() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    plain = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    plain.load_state_dict(scripted.state_dict())
    model = Function(lambda x, f: 2 * f(x), scripted)
    bound = lipschitz_bounds(model, torch.ones(1, 4), local=False)
    assert bound.upper == pytest.approx(2 * lipschitz_bounds(plain, torch.ones(1, 4)).upper)


def test_custom_autograd_functions_are_followed_inside() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x.tanh()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    bound = lipschitz_bounds(Function(Double.apply), torch.ones(1, 4), local=False)
    assert bound.upper == pytest.approx(2)


def test_hooks_that_change_outputs_are_followed() -> None:
    layer = nn.Linear(4, 4)
    plain = lipschitz_bounds(layer, torch.ones(1, 4)).upper
    layer.register_forward_hook(lambda module, args, output: 3 * output)
    assert lipschitz_bounds(layer, torch.ones(1, 4)).upper == pytest.approx(3 * plain, rel=0.01)


def test_the_input_itself_may_be_written_into() -> None:
    x = torch.ones(1, 4)
    bound = lipschitz_bounds(Function(lambda x: x.mul_(3)), x)
    assert bound.upper == pytest.approx(3) and bound.lower == pytest.approx(3, rel=1e-3)
    assert torch.equal(x, torch.ones(1, 4))


def test_outputs_that_hide_their_tensors_have_no_bound() -> None:
    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    bound = lipschitz_bounds(Function(Box), torch.ones(1, 4), local=False)
    assert math.isinf(bound.upper) and "Box" in bound.unbounded[0].reason


def test_branches_that_lead_nowhere_do_not_count() -> None:
    def function(x: Tensor) -> Tensor:
        _ = x.exp() * x
        return 2 * x

    bound = lipschitz_bounds(Function(function), torch.ones(1, 4))
    assert bound.unbounded == () and bound.upper == pytest.approx(2)


def test_integer_outputs_are_left_out_with_a_remark() -> None:
    bound = lipschitz_bounds(Function(lambda x: (2 * x, x.argmax(1))), torch.ones(1, 4))
    assert bound.upper == pytest.approx(2)
    assert any("left out" in step.note for step in bound.steps)


def test_entries_of_views_are_told_apart_from_repeated_ones() -> None:
    x = torch.zeros(4, 6)
    assert entries_apart(x) and entries_apart(x.t()) and entries_apart(x[1:, ::2])
    assert not entries_apart(x[:1].expand(3, 6)) and not entries_apart(x.as_strided((3, 3), (1, 1)))
    assert entries_apart(x[:1].expand(1, 6)) and entries_apart(torch.tensor(1.0))


def test_steps_tell_the_way_from_input_to_output() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 2))
    bound = lipschitz_bounds(model, torch.ones(1, 4))
    assert [(step.where, step.operation) for step in bound.steps] == [
        ("0", "Linear"),
        ("1", "silu"),
        ("2", "Linear"),
    ]
    product = 1.0
    for step in bound.steps:
        product *= step.factor
        assert step.bound == pytest.approx(product)
    assert bound.upper == bound.steps[-1].bound
    assert float(jacobian_norms(model, torch.ones(1, 4))[0]) <= bound.upper


def test_operations_of_other_libraries_are_not_taken_for_those_of_their_name() -> None:
    with torch.library._scoped_library("spectralclip_tests", "FRAGMENT") as library:
        library.define("relu(Tensor x) -> Tensor")
        library.impl("relu", lambda x: 100 * x, "CompositeExplicitAutograd")
        model = Function(torch.ops.spectralclip_tests.relu)
        bound = lipschitz_bounds(model, torch.ones(1, 4), local=False)
    assert math.isinf(bound.upper)
    assert bound.unbounded[0].operation == "spectralclip_tests.relu.default"


def test_complex_inputs_are_not_taken_for_constants() -> None:
    model = Function(lambda x: torch.view_as_real(x).sum(-1))
    bound = lipschitz_bounds(model, torch.ones(1, 4, dtype=torch.complex64), local=False)
    assert math.isinf(bound.upper) and "complex" in bound.unbounded[0].reason


def test_a_model_that_does_not_run_while_followed_has_no_bound_but_a_lower_one() -> None:
    def function(x: Tensor) -> Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not under a mode")
        return 2 * x

    model = Function(function)
    with pytest.warns(UserWarning, match="does not run while"):
        bound = lipschitz_bounds(model, torch.ones(1, 4))
    assert math.isinf(bound.upper) and bound.lower == pytest.approx(2, rel=1e-3)
    assert "not under a mode" in bound.unbounded[0].reason


def test_the_errors_of_the_model_itself_come_through() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        lipschitz_bounds(nn.Linear(3, 3), torch.ones(1, 4))
