"""Bounds carried along a flow, from the input to the output."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle.slopes import Function, jacobian_norms
from spectralclip._lipschitz.bounds import lipschitz_bounds


def test_a_residual_of_a_bent_branch_is_added_up() -> None:
    layer = nn.Linear(5, 5)
    norm = float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    bound = lipschitz_bounds(Function(lambda x, f: x + F.relu(f(x)), layer), torch.zeros(1, 5))
    assert bound.upper == pytest.approx(1 + norm, rel=1e-6)


def test_several_inputs_and_outputs_count_as_one_vector() -> None:
    added = lipschitz_bounds(Function(lambda a, b: a + b), (torch.zeros(1, 3), torch.ones(1, 3)))
    assert added.upper == pytest.approx(math.sqrt(2), rel=1e-4)
    assert added.lower == pytest.approx(math.sqrt(2), rel=1e-3)
    both = Function(lambda x: {"a": 3 * x, "b": (4 * x, [x[:, :1] * 0])})
    assert lipschitz_bounds(both, torch.zeros(1, 3)).upper == pytest.approx(5, rel=1e-4)
    bent = Function(lambda x: (F.relu(3 * x), F.relu(4 * x)))
    assert lipschitz_bounds(bent, torch.zeros(1, 3)).upper == pytest.approx(5)


def test_a_layer_used_twice_counts_twice() -> None:
    layer = nn.Linear(6, 6)
    norm = float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    model = Function(lambda x, f: f(F.relu(f(x))), layer)
    assert lipschitz_bounds(model, torch.zeros(1, 6)).upper == pytest.approx(norm**2, rel=1e-6)


def test_branches_that_lead_nowhere_do_not_count() -> None:
    def function(x: Tensor) -> Tensor:
        _ = x.exp() * x
        return 2 * x

    bound = lipschitz_bounds(Function(function), torch.ones(1, 4))
    assert bound.unbounded == () and bound.upper == pytest.approx(2)


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
