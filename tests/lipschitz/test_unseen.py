"""Ways around what is followed: each is followed after all, or makes the bound infinite."""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from oracle.slopes import Function, affine_norm, jacobian_norms
from spectralclip import Interval
from spectralclip._lipschitz import jacobian
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.result import certified_radius

X = torch.randn(1, 4, generator=torch.Generator().manual_seed(7))


# --- The two ends against each other ----------------------------------------------------------


def in_a_thread(x: Tensor) -> Tensor:
    """Modes belong to a thread, so that this one is out of sight."""
    found: list[Tensor] = []
    grad = torch.is_grad_enabled()

    def work() -> None:
        with torch.set_grad_enabled(grad):
            found.append(100 * x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return x + found[0]


def test_a_local_norm_above_the_bound_refutes_it() -> None:
    bound = lipschitz_bounds(Function(in_a_thread), X)
    assert bound.lower == pytest.approx(101, rel=1e-3)
    assert math.isinf(bound.upper) and math.isinf(bound.product)
    assert "above the bound of 1" in bound.unbounded[-1].reason


def test_a_lower_end_that_fails_leaves_the_upper_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("no luck")

    monkeypatch.setattr(jacobian, "leading_spectrum", failing)
    bound = lipschitz_bounds(Function(lambda x: 3 * x), X)
    assert (bound.lower, bound.local_norms) == (0.0, ()) and bound.upper == pytest.approx(3)
    assert any("no luck" in step.note for step in bound.steps)


def test_derivatives_that_are_not_finite_are_no_lower_end() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * math.nan

    bound = lipschitz_bounds(Function(Broken.apply), X)
    assert bound.lower == 0 and bound.upper == pytest.approx(3)


# --- Rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rms_norm_without_eps_takes_that_of_the_precision_it_sums_in(dtype: torch.dtype) -> None:
    layer = nn.RMSNorm(8, dtype=dtype)
    tiny = torch.full((1, 8), 1e-7, dtype=dtype)
    tiny[0, ::2] *= -1
    with torch.no_grad():
        slope = float(layer(tiny).double().norm() / tiny.double().norm())
    bound = lipschitz_bounds(layer, torch.randn(1, 8).to(dtype), local=False)
    assert 0.5 * slope <= bound.upper
    assert slope <= bound.upper * 1.02
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert bound.upper == pytest.approx(torch.finfo(wide).eps ** -0.5)


SLOPES = torch.tensor([[0.5], [-3.0], [2.0]])
SPREAD: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "clamp": (
        lambda x: torch.clamp(x[:, :, None], min=torch.linspace(-3, 3, 20).to(x)),
        math.sqrt(20),
    ),
    "clamp_min": (
        lambda x: x[:, :, None].clamp_min(torch.linspace(-3, 3, 30).to(x)),
        math.sqrt(30),
    ),
    "bound of a clamp": (
        lambda x: torch.clamp(torch.zeros(1, 100).to(x), min=x[:, :1]),
        10.0,
    ),
    "masked_select": (lambda x: x[:1, :1].masked_select(torch.ones(1, 100).bool()), 10.0),
    "prelu": (
        lambda x: torch.ops.aten._prelu_kernel(x[:, None], SLOPES.to(x)),
        3 * math.sqrt(3),
    ),
    "powers of one": (lambda x: x[:, :, None] ** torch.ones(9).to(x), 3.0),
}


@pytest.mark.parametrize("name", SPREAD)
def test_what_is_broadcast_by_a_constant_counts_as_often(name: str) -> None:
    function, constant = SPREAD[name]
    model = Function(function)
    bound = lipschitz_bounds(model, X, local=False)
    assert bound.unbounded == () and bound.upper == pytest.approx(constant, rel=1e-6)
    points = torch.tensor([[5.0, 5, 5, 5], [-5, -5, -5, -5]])
    assert float(jacobian_norms(model, points).max()) <= constant * (1 + 1e-9)


NAN = torch.tensor([1.0, math.nan, 1, 1])
HOPELESS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "layer norm": (lambda x: F.layer_norm(x, (4,), NAN), "NaN"),
    "prelu": (lambda x: F.prelu(x, NAN), "NaN"),
    "leaky": (lambda x: F.leaky_relu(x, math.nan), "NaN"),
    "scale": (lambda x: x * NAN, "NaN"),
    "power": (lambda x: x ** torch.tensor([1.0, 2, 1, 1]), "slope grows"),
    "bits": (lambda x: x.view(torch.float16), "bits"),
    "weight of a norm": (lambda x: F.layer_norm(torch.ones(1, 4), (4,), x[0], eps=1.0), "no rule"),
    "weight of a batch norm": (
        lambda x: F.batch_norm(torch.ones(2, 4), torch.zeros(4), torch.ones(4), x[0]),
        "no rule",
    ),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_has_no_bound_says_so(name: str) -> None:
    function, reason = HOPELESS[name]
    bound = lipschitz_bounds(Function(function), X.abs() + 0.5, local=False)
    assert math.isinf(bound.upper) and math.isinf(bound.product)
    assert any(reason in place.reason for place in bound.unbounded), bound.unbounded


# --- Batches ----------------------------------------------------------------------------------


def causal(x: Tensor) -> Tensor:
    """Each example and the one before it."""
    return x + torch.cat([torch.zeros_like(x[:1]), x[:-1]])


@pytest.mark.parametrize("zeros", [False, True], ids=["random", "alike"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(0),
        causal,
        lambda x: x + 10 * x[:1],
        lambda x: torch.cat([x[:-1], x[-1:] + x[12:13].sum(0, keepdim=True)]),
    ],
    ids=["cumsum", "causal", "first", "last"],
)
def test_examples_that_influence_others_than_the_first_count_as_one_input(
    function: Callable[[Tensor], Tensor], zeros: bool
) -> None:
    x = torch.zeros(16, 4) if zeros else torch.randn(16, 4)
    bound = lipschitz_bounds(Function(function), x)
    truth = affine_norm(Function(lambda y: function(y[0])), (16, 4))
    assert truth * (1 - 1e-6) <= bound.upper <= truth * 1.0101
    assert len(bound.local_norms) == 1


def test_every_way_that_an_example_takes_counts() -> None:
    model = Function(lambda x: 100 * x if bool(x.sum() > 0) else x)
    x = torch.tensor([[-5.0], [1.0]])
    bound = lipschitz_bounds(model, x, local=False)
    assert bound.upper == pytest.approx(100)
    assert any("each way" in step.note for step in bound.steps)
    factors = Function(lambda x: x * (100 if bool(x.sum() > 0) else 1))
    assert lipschitz_bounds(factors, x, local=False).upper == pytest.approx(100)


def test_examples_that_take_one_way_are_asked_for_but_once() -> None:
    asked = []

    def interval_of(modules: Any, in_shape: Any) -> Any:
        asked.append(tuple(modules))
        return Interval(1.0, 2.0, "exact", 0.0)

    layer = nn.Linear(4, 4)
    model = Function(lambda x, f: f(x) if bool(x[0, 0] > 0) else F.relu(f(x)), layer)
    bound = lipschitz_bounds(model, torch.eye(4) - 0.5, interval_of=interval_of, local=False)
    assert asked == [(layer,)] and bound.upper == 2.0


# --- Modules that are not what they were ------------------------------------------------------


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


# --- Numbers that go their own ways -----------------------------------------------------------


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


# --- Models that are hard to run --------------------------------------------------------------


@pytest.mark.parametrize("optimize", [False, True], ids=["frozen", "optimized"])
def test_frozen_models_are_followed_or_have_no_bound(optimize: bool) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen = torch.jit.freeze(torch.jit.script(plain))
        model = torch.jit.optimize_for_inference(frozen) if optimize else frozen
        bound = lipschitz_bounds(model, X)
        inside = lipschitz_bounds(nn.Sequential(model), X)
    truth = lipschitz_bounds(plain, X).upper
    assert math.isinf(bound.upper) or bound.upper == pytest.approx(truth, rel=0.01)
    assert math.isinf(inside.upper) or inside.upper == pytest.approx(truth, rel=0.01)
    assert bound.lower > 0 or any(step.note for step in bound.steps)


def test_inference_mode_is_left_and_weights_made_under_it_are_refused() -> None:
    layer = nn.Linear(4, 4)
    with torch.inference_mode():
        made = nn.Linear(4, 4)
        bound = lipschitz_bounds(nn.Sequential(layer, nn.ReLU()), torch.randn(2, 4))
        assert 0 < bound.lower <= bound.upper
    with pytest.raises(ValueError, match=r"'weight' of Linear.*inference_mode"):
        lipschitz_bounds(made, X)


def test_integer_logits_have_a_radius() -> None:
    logits = torch.tensor([[3, 1, 0], [0, 5, 5]])
    assert certified_radius(logits, 0.0).tolist() == [math.inf, 0]
    assert certified_radius(logits, 2.0).tolist() == pytest.approx([2 / (2 * math.sqrt(2)), 0])
