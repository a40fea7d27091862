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
from operation_draws import DRAWERS, FUNCTIONS, Call, draw_call
from torch import Tensor

from oracle.slopes import Function, steepest
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


# --- Entries that only other devices reach --------------------------------------------------------

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
    flow = Flow(nodes, {}, [], [], [])
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
