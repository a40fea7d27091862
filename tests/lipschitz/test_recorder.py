"""Numbers followed through a forward pass, or no bound: scripts, hooks, changed modules."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lipschitz_cases import X
from torch import Tensor, nn
from torch.func import functional_call

from oracle.slopes import Function, jacobian_norms
from spectralclip._lipschitz.bounds import lipschitz_bounds


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x * x.max().item(),
        lambda x: x * float(x.max()),
        lambda x: x * x.numpy().max().item(),
        lambda x: x * max(x.tolist()[0]),
        lambda x: x * (1 + 100 * int(x[0].argmax())),
        lambda x: x * x[0].argmax().item(),
        lambda x: x * x.int().max().item(),
        lambda x: x * float(x[0, 0] > 0),
    ],
    ids=["item", "float", "numpy", "tolist", "int", "item of int", "cast", "float of bool"],
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
    assert bound.decisions == ("",)
    assert "only for the way taken at the model, which decides by its input" in str(bound)


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


class Parts(nn.Module):
    """A function of the module itself, with a few parts."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.a = nn.Linear(4, 4)
        self.c = nn.Conv1d(1, 1, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def other_weight(s: Any, x: Tensor) -> Tensor:
    s.c.weight = nn.Parameter(100 * s.c.weight)
    return s.c(x[:, None])


def other_stride(s: Any, x: Tensor) -> Tensor:
    s.c.stride = (1,)
    return s.c(x[:, None])


def other_buffer(s: Any, x: Tensor) -> Tensor:
    first = s.bn(x)
    s.bn.running_var.mul_(1e-4)
    return first + s.bn(x)


def other_data(s: Any, x: Tensor) -> Tensor:
    state = {"weight": s.a.weight.data * 100}
    return functional_call(s.a, state, (x,))


CHANGED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "functional_call": lambda s, x: functional_call(s.a, {"weight": 100 * s.a.weight}, (x,)),
    "data": other_data,
    "parameter": other_weight,
    "stride": other_stride,
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_module_is_bounded_as_it_was_when_called(name: str) -> None:
    model = Parts(CHANGED[name]).eval()
    before = copy.deepcopy(model.state_dict())
    truth = float(jacobian_norms(model, X)[0])
    bound = lipschitz_bounds(copy.deepcopy(model), X, local=False)
    assert truth * (1 - 1e-5) <= bound.upper <= truth * 1.0101
    lipschitz_bounds(model := Parts(CHANGED[name]), X)
    assert model.c.stride == (2,) and before.keys() == model.state_dict().keys()


def test_a_buffer_that_changes_between_two_calls_is_read_as_it_was() -> None:
    bound = lipschitz_bounds(Parts(other_buffer), X, local=False)
    truth = (1 + 1e-5) ** -0.5 + (1e-4 + 1e-5) ** -0.5
    assert truth * (1 - 1e-5) <= bound.upper <= truth * 1.0101


def test_a_hypernetwork_has_no_bound() -> None:
    model = Parts(lambda s, x: functional_call(s.a, {"weight": x.T @ x}, (x,)))
    bound = lipschitz_bounds(model, X)
    assert math.isinf(bound.upper)
    assert any("multiplies values" in place.reason for place in bound.unbounded)


def test_a_batch_norm_that_the_model_lets_train_is_not_taken_for_a_fixed_one() -> None:
    model = Parts(lambda s, x: s.bn.train()(x))
    bound = lipschitz_bounds(model, torch.randn(3, 4))
    assert bound.lower <= bound.upper
    assert bound.upper >= 0.99 / math.sqrt(model.bn.eps)
    assert torch.equal(model.bn.running_var, torch.ones(4))


def scaled(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.a.weight.mul_(1.5)
    return s.a(x)


def scaled_data(s: Any, x: Tensor) -> Tensor:
    s.a.weight.data.mul_(1.5)
    return s.a(x)


def replaced_data(s: Any, x: Tensor) -> Tensor:
    s.a.weight.data = 1.5 * s.a.weight.data
    return s.a(x)


@pytest.mark.parametrize("function", [scaled, scaled_data, replaced_data])
def test_a_model_that_changes_its_own_weights_has_no_bound_and_keeps_them(function: Any) -> None:
    model = Parts(function)
    weight, before = model.a.weight, model.a.weight.detach().clone()
    bound = lipschitz_bounds(model, X)
    assert math.isinf(bound.upper) and bound.lower == 0
    assert "a.weight" in bound.unbounded[0].reason
    assert model.a.weight is weight and torch.equal(weight, before)


def set_data(x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h.data = 100 * x
    return h


def set_data_of_a_follower(x: Tensor) -> Tensor:
    h = 2 * x
    h.data = torch.ones_like(x)
    return h


def set_storage(x: Tensor) -> Tensor:
    y = 100 * x
    return torch.zeros(0).set_(y.untyped_storage(), 0, y.shape, y.stride()) + x


UNSEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda x: torch.tensor([x[0, 0], x[0, 1], 0, 0]) * 100 + x,
    "as_tensor": lambda x: torch.as_tensor([x[0, 0], x[0, 1], 0, 0]) * 100 + x,
    "new_tensor": lambda x: x.new_tensor([x[0, 0], x[0, 1], 0, 0]) * 100 + x,
    "Tensor": lambda x: torch.Tensor([x[0, 0], x[0, 1], 0, 0]) * 100 + x,
    "deepcopy": lambda x: copy.deepcopy(100 * x) + x,
    "storage": set_storage,
    "dlpack": lambda x: torch.from_dlpack(100 * x) + x,
}


@pytest.mark.parametrize("name", UNSEEN)
def test_numbers_that_are_read_behind_the_back_have_no_bound(name: str) -> None:
    bound = lipschitz_bounds(Function(UNSEEN[name]), X, local=False)
    assert math.isinf(bound.upper), bound
    assert any("cannot be followed" in place.reason for place in bound.unbounded)


def test_constants_may_be_made_of_numbers() -> None:
    model = Function(lambda x: x * torch.tensor([1.0, 3.0, 2.0, 0.0]) + torch.tensor(2.0))
    bound = lipschitz_bounds(model, X)
    assert bound.unbounded == () and bound.upper == pytest.approx(3)


def test_data_that_is_exchanged_is_followed() -> None:
    assert lipschitz_bounds(Function(set_data), X, local=False).upper == pytest.approx(100)
    assert lipschitz_bounds(Function(set_data_of_a_follower), X, local=False).upper == 0


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: torch.equal(x, X),
        lambda x: torch.allclose(x, X),
        lambda x: len((x > 0).nonzero()) > 0,
    ],
    ids=["equal", "allclose", "nonzero"],
)
def test_every_decision_is_noted(decide: Callable[[Tensor], bool]) -> None:
    model = Function(lambda x: 2 * x if decide(x) else 3 * x)
    bound = lipschitz_bounds(model, X, local=False)
    assert bound.upper == pytest.approx(2)
    assert any("way taken" in step.note for step in bound.steps)


class Box:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Slots:
    __slots__ = ("value",)

    def __init__(self, value: Tensor) -> None:
        self.value = [value]


@pytest.mark.parametrize("box", [Box, Slots])
def test_objects_that_hide_tensors_have_no_bound(box: Any) -> None:
    out = lipschitz_bounds(Function(lambda x: (x, [box(100 * x)])), X)
    assert math.isinf(out.upper) and out.unbounded[0].operation == "output"
    model = Function(lambda x, other: x + 100 * torch.as_tensor(_inside(other)))
    given = lipschitz_bounds(model, (X, box(X)))
    assert math.isinf(given.upper) and given.unbounded[0].operation == "input"


def _inside(box: Any) -> Tensor:
    value = box.value
    return value if isinstance(value, Tensor) else value[0]
