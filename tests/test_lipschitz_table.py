"""Every entry of the table of operations against dense Jacobians and slopes, at drawn arguments."""

from __future__ import annotations

import math

import operation_draws_affine
import operation_draws_bent
import operation_draws_products
import pytest
import torch
from operation_draws import DRAWERS, FUNCTIONS, Call, draw_call
from slopes import Function, steepest
from torch import Tensor

from spectralclip._lipschitz._bounds import lipschitz_bounds
from spectralclip._lipschitz._following import follow
from spectralclip._lipschitz._operations import TABLE

assert operation_draws_affine and operation_draws_bent and operation_draws_products

# Seen on other devices alone; on this one they fall apart into others, or do not exist.
ELSEWHERE = {"linear", "_fused_rms_norm", "cudnn_batch_norm", "miopen_batch_norm"}
MANY = 60  # draws of each
ROUNDING = 1e-6


def model_of(call: Call) -> Function:
    """The results of a call side by side, for an input with a batch dimension."""

    def function(x: Tensor) -> Tensor:
        made = call(x[0].clone())
        return torch.cat([y.flatten() for y in made])

    return Function(function)


def example_for(call: Call, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, math.prod(call.shape), generator=generator, dtype=torch.float64)


def test_every_entry_has_draws_and_every_draw_an_entry() -> None:
    assert set(DRAWERS) == set(TABLE) - ELSEWHERE


@pytest.mark.parametrize("name", sorted(set(TABLE) - set(FUNCTIONS)))
def test_the_arguments_that_an_entry_names_exist(name: str) -> None:
    packet = getattr(torch.ops.aten, name)
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
    finite = check(name, range(MANY))
    assert finite >= MANY // 6, f"{name}: {finite} of {MANY} draws have a bound"


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
