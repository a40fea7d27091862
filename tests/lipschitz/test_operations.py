"""Every entry of the table of operations against dense Jacobians and slopes, at drawn arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import operation_draws_affine
import operation_draws_bent
import operation_draws_products
import pytest
import torch
import torch.nn.functional as F
from lipschitz_cases import X
from operation_draws import DRAWERS, FUNCTIONS, Call, draw_call
from torch import Tensor

from oracle.slopes import Function, jacobian_norms, steepest
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.chain_norms import Norms, standard_intervals
from spectralclip._lipschitz.flow import Flow, Node, Ref, piece
from spectralclip._lipschitz.following import follow
from spectralclip._lipschitz.operations import TABLE, rule_of

assert operation_draws_affine and operation_draws_bent and operation_draws_products

# Seen on other devices alone; on this one they fall apart into others, or do not exist.
ELSEWHERE = {"linear", "_fused_rms_norm", "cudnn_batch_norm", "miopen_batch_norm"}
MANY = 18  # draws of each
ROUNDING = 1e-6


def model_of(call: Call) -> Function:
    """The results that an entry is for, side by side, for an input with a batch dimension."""
    outputs = TABLE[call.name].outputs

    def function(x: Tensor) -> Tensor:
        made = call(x[0].clone(), outputs)
        return torch.cat([y.flatten() for y in made])

    return Function(function)


def example_for(call: Call, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, math.prod(call.shape), generator=generator, dtype=torch.float64)


def test_every_entry_has_draws_and_every_draw_an_entry() -> None:
    assert set(DRAWERS) == set(TABLE) - ELSEWHERE


# Not in every version of torch that is supported.
NEWER = {"_fused_rms_norm"}


def operation(name: str) -> Any:
    if name in NEWER and not hasattr(torch.ops.aten, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    return getattr(torch.ops.aten, name)


@pytest.mark.parametrize("name", sorted(set(TABLE) - set(FUNCTIONS)))
def test_the_arguments_that_an_entry_names_exist(name: str) -> None:
    packet = operation(name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    known = {argument.name for schema in schemas for argument in schema.arguments}
    named = {*TABLE[name].data, *TABLE[name].settings}
    shared = {"batch_norm", "convolution", "upsample", "avg_pool", "view", "norm", "max_pool"}
    assert named <= known or any(family in name for family in shared), named - known
    assert set(TABLE[name].data) & known


@pytest.mark.parametrize("name", sorted(set(DRAWERS) - ELSEWHERE))
def test_no_slope_of_an_operation_is_above_its_rule(name: str) -> None:
    seed = next(seed for seed in range(20) if draw_call(name, seed) is not None)
    check(name, range(seed, seed + 1), stride=7)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DRAWERS))
def test_no_slope_of_an_operation_is_above_its_rule_at_many_arguments(name: str) -> None:
    finite = check(name, range(MANY), stride=2)
    assert finite >= MANY // 6, f"{name}: {finite} of {MANY} draws have a bound"


ROWS, WEIGHT = (2, 3), torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.2, -1.0]], dtype=torch.float64)
MEAN, VARIANCE = torch.zeros(3).double(), torch.tensor([0.1, 1.0, 4.0]).double()
GAMMA = torch.tensor([2.0, -1.0, 0.5]).double()


def normed(x: Tensor, training: bool) -> Tensor:
    return F.batch_norm(x, MEAN.clone(), VARIANCE.clone(), GAMMA, None, training, 0.1, 0.01)


BATCH_NORMS = {
    f"{name}{', training' * training}": (
        name,
        (Ref(1), GAMMA, None, MEAN, VARIANCE, training, 0.1, 0.01),
        functools.partial(normed, training=training),
    )
    for name in ("cudnn_batch_norm", "miopen_batch_norm")
    for training in (False, True)
}
HAND_MADE: dict[str, tuple[str, tuple[Any, ...], Callable[[Tensor], Tensor]]] = {
    "linear": ("linear", (Ref(1), WEIGHT, None), lambda x: F.linear(x, WEIGHT)),
    "rms norm": (
        "_fused_rms_norm",
        (Ref(1), [3], GAMMA, 0.01),
        lambda x: F.rms_norm(x, (3,), GAMMA, 0.01),
    ),
    **BATCH_NORMS,
}


@pytest.mark.parametrize("case", HAND_MADE)
def test_no_slope_is_above_the_rule_of_what_other_devices_reach(case: str) -> None:
    name, args, function = HAND_MADE[case]
    kind, device = torch.float64, torch.device("cpu")
    nodes = [
        Node(0, "inputs", "", (), {}, (6,), kind, device),
        Node(1, "input", "", (Ref(0), 0, ROWS), {}, ROWS, kind, device, function=piece),
    ]
    form = operation(name).default
    shape = (2, 2) if name == "linear" else ROWS
    nodes.append(Node(2, name, "", args, {}, shape, kind, device, function=form))
    flow = Flow(nodes, {}, [], [], [], [])
    interval = standard_intervals(0.01, 1e-6, True, 0)
    rule = rule_of(nodes[2], flow, Norms(flow, interval, interval))
    assert rule.reason == ""
    model = Function(lambda x: function(x.reshape(ROWS)).reshape(1, -1))
    assert steepest(model, 6, 0) <= rule.combined(lambda _: 1.0) * (1 + ROUNDING)


def check(name: str, seeds: range, stride: int = 1) -> int:
    """Compare bounds with what is found; the number of calls that have a bound."""
    finite = 0
    for seed in seeds:
        call = draw_call(name, seed)
        if call is None:
            continue
        model, example = model_of(call), example_for(call, seed)
        flow = follow(model, [example], {})
        assert any(node.operation == name for node in flow.nodes), f"{name} is not seen"
        upper = lipschitz_bounds(model, example, local=False).upper
        if math.isfinite(upper):
            finite += 1
            slope = steepest(model, example.numel(), seed, stride)
            assert slope <= upper * (1 + ROUNDING) + 1e-9, (name, seed, slope, upper)
    return finite


aten = torch.ops.aten


def test_dropout_that_trains_is_drawn_at_random() -> None:
    for train in (True, None):
        model = Function(lambda x, train=train: aten.native_dropout(x, 0.5, train)[0])
        bound = lipschitz_bounds(model, X, local=False)
        assert math.isinf(bound.upper) and "at random" in bound.unbounded[0].reason
    still = Function(lambda x: aten.native_dropout(x, 0.5, False)[0])
    assert lipschitz_bounds(still, X, local=False).upper == 1.0


def test_a_batch_norm_that_updates_its_statistics_uses_those_of_its_input() -> None:
    def function(x: Tensor) -> Tensor:
        mean, variance = torch.zeros(2).to(x), torch.ones(2).to(x)
        made = aten._batch_norm_with_update(x.reshape(2, 2), None, None, mean, variance, 0.1, 1e-4)
        return made[0]

    bound = lipschitz_bounds(Function(function), X, local=False)
    assert bound.upper == pytest.approx(100.0)


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
