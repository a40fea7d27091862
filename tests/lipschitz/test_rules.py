"""Each rule against the constant it stands for: never exceeded, and attained where it says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lipschitz_cases import spread
from torch import Tensor, nn

from oracle.slopes import Function, affine_norm, jacobian_norms, largest_slope
from spectralclip._lipschitz.bounds import lipschitz_bounds

# --- Affine ones, against dense matrices ------------------------------------------------------

WEIGHT = spread(4, 3, 3, 3).float()
MATRIX = spread(6, 5).float()
AFFINE: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "functional convolution": (lambda x: F.conv2d(x, WEIGHT.to(x), padding=1), (3, 6, 6)),
    "functional linear": (lambda x: F.linear(x, MATRIX.to(x)), (5,)),
    "matmul": (lambda x: x @ MATRIX.to(x).T, (2, 5)),
    "einsum": (lambda x: torch.einsum("bij,kj->bik", x, MATRIX.to(x)), (2, 5)),
    "batch norm": (
        lambda x: F.batch_norm(x, torch.ones(3).to(x), torch.tensor([0.1, 1, 4]).to(x)),
        (3, 4),
    ),
    "average pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 7, 7)),
    "average pooling, apart": (lambda x: F.avg_pool2d(x, 2), (2, 6, 6)),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, 3), (2, 7, 7)),
    "mean": (lambda x: x.mean((2, 3)), (2, 4, 5)),
    "sum": (lambda x: x.sum(1), (6, 2)),
    "cumsum": (lambda x: x.cumsum(1), (6,)),
    "scale": (lambda x: -2.5 * x / 5 + 1, (4,)),
    "scale by a tensor": (lambda x: x * torch.tensor([1.0, -3, 2]).to(x), (2, 3)),
    "scale that broadcasts": (lambda x: x * torch.tensor([[1.0], [-3], [2]]).to(x), (1, 4)),
    "add that broadcasts": (lambda x: x + torch.ones(3, 4).to(x), (1, 4)),
    "from a constant": (lambda x: 3 - x, (4,)),
    "rows": (lambda x: x[:, 1:3, ::2], (4, 5)),
    "picked twice": (lambda x: x[:, [0, 0, 0, 1]], (4,)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([2, 2])), (4,)),
    "gather": (lambda x: x.gather(1, torch.tensor([[1, 1, 1, 0]])), (4,)),
    "expand": (lambda x: x.expand(-1, 3, 4), (1, 4)),
    "repeat": (lambda x: x.repeat(1, 3), (4,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (4,)),
    "reflect": (lambda x: F.pad(x, (2, 2), "reflect"), (2, 5)),
    "circular": (lambda x: F.pad(x, (2, 2, 1, 1), "circular"), (2, 5, 5)),
    "zeros": (lambda x: F.pad(x, (2, 2)), (2, 5)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 3)),
    "bilinear": (lambda x: F.interpolate(x, size=(7, 5), mode="bilinear"), (1, 4, 4)),
    "bilinear, smoothed": (
        lambda x: F.interpolate(x, size=(2, 3), mode="bilinear", antialias=True),
        (1, 6, 6),
    ),
    "unfold": (lambda x: F.unfold(x, 3), (2, 5, 5)),
    "fold": (lambda x: F.fold(x, (5, 5), 3), (9, 9)),
    "windows": (lambda x: x.unfold(1, 3, 1), (7,)),
    "shuffle": (lambda x: F.pixel_shuffle(x, 2), (4, 3, 3)),
    "flip and roll": (lambda x: x.flip(1).roll(1, 1).transpose(1, 2), (4, 3)),
    "masked": (lambda x: x.masked_fill(torch.arange(4) > 2, 7.0), (4,)),
    "lower triangle": (lambda x: x.tril(), (4, 4)),
    "where": (lambda x: torch.where(torch.arange(4) > 1, x, 2 * x), (4,)),
    "lerp": (lambda x: torch.lerp(x, x.flip(1), 0.3), (4,)),
    "addcmul": (lambda x: torch.addcmul(x, x, 2 * torch.ones(4).to(x), value=0.5), (4,)),
    "addmm": (lambda x: torch.addmm(x[:, :3], x, torch.ones(5, 3).to(x), alpha=2), (5,)),
    "centred": (lambda x: x - x.mean(1, keepdim=True), (6,)),
    "with itself": (lambda x: torch.cat([x, 2 * x, x.sum(1, keepdim=True)], 1), (4,)),
    "stacked": (lambda x: torch.stack([x, x, -x], 1), (4,)),
    "split and joined": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), (4,)),
    "split and added": (lambda x: sum(torch.split(x, [1, 1, 1], 1)), (3,)),
    "scattered": (
        lambda x: torch.zeros(1, 6).to(x).expand(len(x), 6).scatter_add(1, ROWS, x),
        (4,),
    ),
    "grid": (lambda x: F.grid_sample(x, GRID.to(x), align_corners=True), (1, 5, 5)),
    "to another precision": (lambda x: x.to(torch.float64).to(x.dtype) * 3, (4,)),
}
ROWS = torch.tensor([[0, 0, 0, 1]])
GRID = F.affine_grid(torch.eye(2, 3)[None] * 0.7, [1, 1, 4, 4], align_corners=True)


@pytest.mark.parametrize("name", AFFINE)
def test_what_is_affine_has_the_norm_of_its_matrix(name: str) -> None:
    function, shape = AFFINE[name]
    model = Function(function)
    bound = lipschitz_bounds(model, torch.ones(1, *shape))
    truth = affine_norm(model, shape)
    assert bound.unbounded == ()
    assert truth * (1 - 1e-6) <= bound.upper <= truth * 1.0101
    if name == "grid" and torch.__version__ < "2.7":
        pytest.skip("torch 2.6 has no second derivative of grid_sample for the lower end")
    assert truth * 0.98 <= bound.lower <= truth * (1 + 1e-6)


# --- Several branches -------------------------------------------------------------------------


def test_branches_that_bend_are_added_up() -> None:
    model = Function(lambda x: F.relu(2 * x) - 3 * torch.sigmoid(x))
    assert lipschitz_bounds(model, torch.ones(1, 4)).upper == pytest.approx(2 + 0.75)


def test_branches_that_bend_lie_side_by_side() -> None:
    joined = Function(lambda x: torch.cat([F.relu(3 * x), 4 * torch.tanh(x)], 1))
    stacked = Function(lambda x: torch.stack([F.relu(3 * x), 4 * torch.tanh(x)]))
    for model in (joined, stacked):
        assert lipschitz_bounds(model, torch.ones(1, 4)).upper == pytest.approx(5)


@pytest.mark.parametrize("pair", [torch.maximum, torch.fmin, torch.hypot, torch.logaddexp])
def test_the_larger_of_two_moves_no_more_than_both(pair: Any) -> None:
    model = Function(lambda x: pair(3 * x, 4 * x.flip(1)))
    bound = lipschitz_bounds(model, torch.ones(1, 4), local=False)
    assert bound.upper == pytest.approx(5)
    assert largest_slope(model, (4,), 4000) <= 5


def test_what_is_broadcast_counts_as_often() -> None:
    model = Function(lambda x: F.relu(x) + F.relu(x.sum(1, keepdim=True)))
    truth = 1 + math.sqrt(4) * math.sqrt(4)  # a sum of four, spread over four
    assert lipschitz_bounds(model, torch.ones(1, 4)).upper == pytest.approx(truth, rel=1e-5)
    assert jacobian_norms(model, torch.ones(1, 4))[0] == pytest.approx(truth)


# --- What has no bound ------------------------------------------------------------------------

HOPELESS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "product": (lambda x: x * x.flip(1), "multiplies values"),
    "square": (lambda x: x**2, "slope grows"),
    "exp": (lambda x: x.exp(), "slope grows"),
    "sqrt": (lambda x: x.abs().sqrt(), "slope grows"),
    "reciprocal": (lambda x: 1 / (1 + x.abs()), "slope grows"),
    "denominator": (lambda x: x / (1 + x.abs()), "divides by a value"),
    "matmul": (lambda x: x @ x.T, "multiplies values"),
    "variance": (lambda x: x.var(1), "slope grows"),
    "glu": (lambda x: F.glu(x, 1), "bounded inputs alone"),
    "sign": (lambda x: x.sign(), "jumps"),
    "round": (lambda x: x.round(), "jumps"),
    "hardshrink": (lambda x: F.hardshrink(x), "jumps"),
    "threshold that jumps": (lambda x: F.threshold(x, 0.1, 5.0), "jumps"),
    "softplus that jumps": (lambda x: F.softplus(x, threshold=1), "jumps"),
    "celu that grows": (lambda x: F.celu(x, alpha=-1.0), "negative alpha"),
    "chosen by itself": (lambda x: torch.where(x > 0, x, x + 1), "jumps"),
    "masked by itself": (lambda x: x * (x > 0), "jumps"),
    "picked by itself": (lambda x: x.gather(1, x.argsort(1)), "jumps"),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
        "attention",
    ),
    "no eps": (lambda x: F.layer_norm(x, (4,), eps=0.0), "no rule"),
    "complex": (lambda x: torch.fft.fft(x).abs(), "complex"),
    "unknown": (lambda x: torch.special.bessel_j0(x), "no rule"),
    "rounded": (lambda x: torch.div(x, 2, rounding_mode="floor"), "jumps"),
    "norm, p = 1/2": (lambda x: x.norm(p=0.5, dim=1), "no rule"),
    "moved grid": (
        lambda x: F.grid_sample(torch.ones(1, 1, 3, 3), x.reshape(1, 1, 2, 2), align_corners=False),
        "no rule",
    ),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_has_no_bound_says_so(name: str) -> None:
    function, reason = HOPELESS[name]
    bound = lipschitz_bounds(Function(function), torch.rand(1, 4) + 0.5, local=False)
    assert math.isinf(bound.upper) and math.isinf(bound.product)
    assert any(reason in place.reason for place in bound.unbounded), bound.unbounded


def test_attention_is_not_guessed_and_every_place_is_named() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    bound = lipschitz_bounds(model, torch.randn(1, 5, 8), local=False)
    places = [(place.where, place.operation) for place in bound.unbounded]
    assert places == [(f"layers.{i}.self_attn", "MultiheadAttention") for i in (0, 1)]
    assert math.isinf(bound.upper)
    assert any(step.operation == "native_layer_norm" for step in bound.steps)
