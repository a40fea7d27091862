"""Activations written out by hand, and what else a bound is expected to see through."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle.slopes import Function
from spectralclip._lipschitz.bounds import lipschitz_bounds

ROOT = math.sqrt(2 / math.pi)
GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "gelu_fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * ROOT * (1.0 + 0.044715 * x * x))),
    "gelu by erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "gelu, halved last": lambda x: 0.5 * (x * (1 + torch.erf(x / math.sqrt(2.0)))),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": lambda x: x * x.sigmoid(),
    "swish, negative": lambda x: -3 * x * torch.sigmoid(-5 * x),
    "one minus": lambda x: x * (1 - torch.sigmoid(x)),
    "square inside": lambda x: x * torch.tanh(x.square() - 1),
    "of a sum": lambda x: (y := x + 1) * torch.sigmoid(2 * y),
}


def steepest_on_a_grid(function: Callable[[Tensor], Tensor]) -> float:
    grid = torch.linspace(-30, 30, 2_000_001, dtype=torch.float64)
    values = function(grid)
    return float((values[1:] - values[:-1]).abs().max() / (grid[1] - grid[0]))


@pytest.mark.parametrize("name", GATED)
def test_an_activation_written_by_hand_has_its_largest_slope(name: str) -> None:
    function = GATED[name]
    bound = lipschitz_bounds(Function(function), torch.randn(1, 5), local=False)
    truth = steepest_on_a_grid(function)
    assert bound.unbounded == ()
    assert truth * (1 - 1e-6) <= bound.upper <= truth * 1.002


def test_gelu_by_hand_is_bounded_like_the_one_of_torch() -> None:
    for name, form in (("gelu_new", "tanh"), ("gelu by erf", "none")):
        hand = nn.Sequential(nn.Linear(4, 6), Function(GATED[name]), nn.Linear(6, 3))
        model = nn.Sequential(hand[0], nn.GELU(form), hand[2])
        bounds = [lipschitz_bounds(m, torch.randn(1, 4), local=False) for m in (hand, model)]
        assert bounds[0].upper == pytest.approx(bounds[1].upper, rel=2e-3)


NO_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "gate of another": lambda x: x * torch.sigmoid(x.flip(1)),
    "square times gate": lambda x: x * x * torch.sigmoid(x),
    "gate times gate": lambda x: torch.sigmoid(x) * torch.tanh(x) * x,
    "shifted": lambda x: (1 + x) * (x + torch.tanh(x)),
    "broadcast": lambda x: x[:, :1] * torch.sigmoid(x),
    "power used twice": lambda x: GATED["gelu_new"](x) + x**3,
    "steeper inside": lambda x: x * torch.sigmoid(x**4),
}


@pytest.mark.parametrize("name", NO_GATES)
def test_other_products_have_no_bound(name: str) -> None:
    bound = lipschitz_bounds(Function(NO_GATES[name]), torch.randn(1, 5), local=False)
    assert math.isinf(bound.upper) and bound.unbounded


@pytest.mark.parametrize("count", [1, 2])
def test_attention_in_evaluation_has_a_lower_end(count: int) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, count).eval()
    enabled = torch.backends.mha.get_fastpath_enabled()
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    bound = lipschitz_bounds(model, x)
    wide, point = model.double().train(), x[0].double()
    for part in wide.modules():  # training alone keeps torch from its faster way
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    matrix = torch.autograd.functional.jacobian(lambda x: wide(x[None]).flatten(), point)
    truth = float(torch.linalg.matrix_norm(matrix.flatten(1), ord=2))
    assert bound.lower == pytest.approx(truth, rel=0.02)
    assert torch.backends.mha.get_fastpath_enabled() == enabled


def test_a_function_of_torch_is_not_changed_by_what_is_seen_by_hand() -> None:
    bound = lipschitz_bounds(Function(F.silu), torch.randn(1, 5), local=False)
    assert [step.operation for step in bound.steps] == ["silu"]
