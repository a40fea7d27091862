"""Examples of a batch, one by one where they do not influence each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from oracle.slopes import Function, affine_norm
from spectralclip._lipschitz.bounds import lipschitz_bounds


def test_the_bound_is_for_one_example_unless_they_meet() -> None:
    layer = nn.Linear(4, 4)
    alone = lipschitz_bounds(layer, torch.randn(1, 4)).upper
    assert lipschitz_bounds(layer, torch.randn(5, 4)).upper == alone
    meet = Function(lambda x: x.sum(0, keepdim=True).expand(3, -1))
    bound = lipschitz_bounds(meet, torch.randn(3, 4))
    assert bound.upper == pytest.approx(3, rel=1e-6)
    assert len(bound.local_norms) == 1


def test_examples_are_looked_at_one_by_one_and_at_most_eight() -> None:
    bound = lipschitz_bounds(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(11, 3))
    assert len(bound.local_norms) == 8 and len(set(bound.local_norms)) == 8
    assert lipschitz_bounds(nn.Linear(3, 3), torch.randn(2, 3), local=False).local_norms == ()


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
