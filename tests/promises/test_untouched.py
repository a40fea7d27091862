"""A layer is as it was before: weights, gradients, buffers, flags, hooks, and the global RNG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, HALF_CASES, Case, dense, modules, params
from torch import Tensor, nn
from untouched import assert_same, disturb, state, surroundings

import spectralclip as sc


def use_operator(layer: Any, in_shape: tuple[int, ...]) -> None:
    for explicit in (True, False):
        op = sc.as_operator(layer, in_shape, explicit=explicit)
        x = torch.ones(2, *op.in_shape, dtype=op.dtype)
        y = torch.ones(2, *op.out_shape, dtype=op.dtype)
        op.matvec(x)
        op.rmatvec(y)
        op.gram(x)
        op.to_dense()
        op.adjoint().matvec(y)
        op.bilinear(y, x)
        if op.parameters:
            op.pullback(y, x)


def use_differentiable_norm(layer: Any, in_shape: tuple[int, ...]) -> None:
    sc.spectral_norm(layer, in_shape, differentiable=True)


USES: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "as_operator": use_operator,
    "check_affine": lambda layer, shape: sc.check_affine(layer, shape),
    "svds": lambda layer, shape: sc.svds(layer, shape, k=1),
    "lanczos": lambda layer, shape: sc.svds(layer, shape, k=1, solver=sc.Lanczos()),
    "power-qr": lambda layer, shape: sc.svds(layer, shape, k=1, solver=sc.PowerQR(iterations=3)),
    "exact": lambda layer, shape: sc.svds(layer, shape, k=1, solver=sc.Exact()),
    "spectral_norm": lambda layer, shape: sc.spectral_norm(layer, shape),
    "differentiable-norm": use_differentiable_norm,
    "singular_values": lambda layer, shape: sc.singular_values(layer, shape),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
@pytest.mark.filterwarnings("ignore::spectralclip.ConvergenceWarning")
def test_everything_is_as_it_was(case: Case, use: str) -> None:
    layer = case.make()
    disturb(layer)
    before, outside = state(layer), surroundings()
    USES[use](layer, case.in_shape)
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


@pytest.mark.parametrize("use", ["as_operator", "svds", "differentiable-norm"])
def test_graph_through_the_layer_survives(use: str) -> None:
    """A backward pass that the user has begun still runs: nothing was written in place."""
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1))
    x = torch.ones(4, 2, 6, 6, requires_grad=True)
    loss = layer(x).square().sum()
    expected = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    USES[use](layer, (2, 6, 6))
    loss.backward()
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_penalty_reaches_the_weights_and_adds_to_what_is_there() -> None:
    layer = nn.Linear(5, 4)
    layer.weight.grad = torch.ones_like(layer.weight)
    norm = sc.spectral_norm(layer, (5,), tol=1e-6, differentiable=True)
    assert torch.equal(layer.weight.grad, torch.ones_like(layer.weight))
    norm.backward()
    u, _, v = np.linalg.svd(layer.weight.detach().numpy())
    expected = torch.ones(4, 5) + torch.from_numpy(np.outer(u[:, 0], v[0]))
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-4, atol=1e-4)


# --- Errors in the middle -----------------------------------------------------------------


class Fails(nn.Module):
    """Raises at a given call of its forward."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.at = at
        self.calls = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        if self.calls[0] == self.at:
            raise RuntimeError("out of luck")
        return self.conv(self.norm(x))


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("use", [u for u in USES if u != "check_affine"])
def test_everything_is_as_it_was_after_a_failing_forward(use: str, call: int) -> None:
    layer = Fails(call)
    disturb(layer)
    before, outside = state(layer), surroundings()
    with pytest.raises((ValueError, RuntimeError), match="out of luck"):
        USES[use](layer, (2, 4, 4))
    assert layer.calls == [call]
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


class RandomInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.linear(x), 0.5, training=True)


REFUSED: dict[str, Callable[[], tuple[Any, tuple[int, ...]]]] = {
    "not-affine": lambda: (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), (4,)),
    "not-affine-inside": lambda: (nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), (4,)),
    "random-in-evaluation": lambda: (RandomInEvaluation(), (6,)),
    "noise-callable": lambda: (lambda x: x + torch.randn_like(x), (6,)),
    "batch-statistics": lambda: (nn.BatchNorm2d(3, track_running_stats=False), (3, 4, 4)),
    "wrong-shape": lambda: (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (3, 6, 6)),
    "wrong-shape-later": lambda: ([nn.Linear(4, 5), nn.BatchNorm1d(6)], (4,)),
    "not-finite": lambda: (with_nan(nn.Linear(4, 5)), (4,)),
}


def with_nan(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    return layer


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("refused", REFUSED)
def test_everything_is_as_it_was_after_a_refusal(refused: str, use: str) -> None:
    layer, in_shape = REFUSED[refused]()
    disturb(layer)
    before, outside = state(layer), surroundings()
    with pytest.raises(ValueError):
        USES[use](layer, in_shape)
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


@pytest.mark.parametrize("arguments", [{"k": 0}, {"k": 99}, {"tol": -1.0}, {"solver": "magic"}])
def test_everything_is_as_it_was_after_bad_arguments(arguments: dict[str, Any]) -> None:
    layer = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    disturb(layer)
    before, outside = state(layer), surroundings()
    with pytest.raises((TypeError, ValueError)):
        sc.svds(layer, (2, 4, 4), **arguments)
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


# --- The watch itself ---------------------------------------------------------------------


def change_weight_and_back(layer: nn.Sequential) -> None:
    with torch.no_grad():
        layer[0].weight.add_(1.0).sub_(1.0)


def change_hook(layer: nn.Sequential) -> None:
    layer[0].register_forward_hook(lambda *_: None)


def change_buffer(layer: nn.Sequential) -> None:
    layer(torch.zeros(2, 2, 4, 4))


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "weight and back": change_weight_and_back,
    "hook": change_hook,
    "buffers": change_buffer,
    "flag": lambda layer: layer[1].eval(),
    "gradient": lambda layer: layer[0].weight.grad.zero_(),
    "no gradient": lambda layer: layer.zero_grad(),
    "requires_grad": lambda layer: layer[0].bias.requires_grad_(False),
    "replaced": lambda layer: setattr(layer[0], "weight", nn.Parameter(layer[0].weight.data)),
    "attribute": lambda layer: setattr(layer[0], "u", 1),
    "new buffer": lambda layer: layer[0].register_buffer("u", torch.ones(1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_watch_sees(change: str) -> None:
    layer = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    disturb(layer)
    before = state(layer)
    CHANGES[change](layer)
    with pytest.raises(AssertionError):
        assert_same(before, state(layer))


def test_cases_come_out_the_same_each_time_and_leave_the_rng_alone() -> None:
    outside = surroundings()
    for case in CASES:
        first, second = case.make(), case.make()
        for one, other in zip(modules(first), modules(second), strict=True):
            for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
                assert torch.equal(a, b), case.name
    assert_same(outside, surroundings())
    assert len({case.name for case in CASES + HALF_CASES}) == len(CASES + HALF_CASES)
    assert max(dense(case).size for case in CASES if "warns" not in case.tags) <= 1_000_000
