"""The paper's Algorithm 2 does what is printed, and leaves the layer whole where it fails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    CASES,
    HALF_CASES,
    Case,
    conv2d_with,
    double,
    linear_with_values,
    modules,
    own_parameters,
    params,
    parts,
)
from torch import nn
from torch.nn.utils import parametrizations
from untouched import assert_same, disturb, equal, state, surroundings

import spectralclip as sc
from oracle import dense_norm
from spectralclip._spectrum import leading_spectrum
from spectralclip.methods import (
    PUBLISHED,
    PUBLISHED_WITHOUT_BATCH_NORM,
    PaperClipResult,
    paper_clip,
    paper_clip_,
)


def rank_one(value: float) -> tuple[nn.Linear, np.ndarray]:
    """A dense layer with one singular value, and its matrix divided by that."""
    layer = linear_with_values([value], 7, 5)
    return layer, layer.weight.detach().numpy() / value


# --- What is printed -------------------------------------------------------------------------


@pytest.mark.parametrize(("lr", "steps"), [(1.0, 1), (0.35, 1), (0.35, 5), (0.1, 3), (1.5, 4)])
def test_one_round_on_a_rank_one_layer(lr: float, steps: int) -> None:
    """Each step multiplies the distance to c by 1 - lambda."""
    layer, direction = rank_one(3.0)
    bias = layer.bias.detach().clone()
    result = paper_clip_(layer, (5,), 1.2, lr=lr, inner_steps=steps, power_iterations=30, rounds=1)
    expected = 1.2 + (1 - lr) ** steps * (3.0 - 1.2)
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected * direction, atol=1e-12)
    assert result.norm_before == pytest.approx(3.0)
    assert result.norm_after == pytest.approx(abs(expected), rel=1e-6)
    assert result.rounds == 1
    assert torch.equal(layer.bias, bias)


def test_rounds_on_a_dense_layer_clip_one_value_after_the_other() -> None:
    layer = linear_with_values([4.0, 2.0, 0.5], 9, 6)
    U, _, Vh = np.linalg.svd(layer.weight.detach().numpy(), full_matrices=False)
    options = {"lr": 1.0, "inner_steps": 1, "power_iterations": 400}
    for rounds, values in ((1, [1.0, 2.0, 0.5]), (2, [1.0, 1.0, 0.5])):
        twin = double(layer)
        result = paper_clip_(twin, (6,), 1.0 + 1e-9, rounds=rounds, **options)
        expected = (U[:, :3] * values) @ Vh[:3]
        np.testing.assert_allclose(twin.weight.detach().numpy(), expected, atol=1e-7)
        assert result.rounds == rounds


def test_each_step_descends_the_printed_loss() -> None:
    """On a convolution, one step is minus lambda times the gradient, taken through torch's own."""
    layer = nn.Conv2d(2, 3, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.mul_(4)
    found = sc.svds(layer, (2, 5, 5), 1, solver=sc.PowerQR(iterations=50))
    weight = layer.weight.detach().clone().requires_grad_()
    c, sigma = 1.0, float(found.S[0])
    with torch.no_grad():
        target = nn.functional.conv2d(c / sigma * found.V, weight, layer.bias, padding=1)
    loss = (nn.functional.conv2d(found.V, weight, layer.bias, padding=1) - target).square().sum()
    (gradient,) = torch.autograd.grad(loss / 2, weight)
    paper_clip_(layer, (2, 5, 5), c, lr=0.01, inner_steps=1, power_iterations=50, rounds=1)
    torch.testing.assert_close(layer.weight.detach(), weight.detach() - 0.01 * gradient)


def test_a_fresh_vector_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def watched(*args: Any, generator: torch.Generator, **kwargs: Any) -> Any:
        seen.append(generator.get_state())
        return leading_spectrum(*args, generator=generator, **kwargs)

    monkeypatch.setattr(paper_clip, "leading_spectrum", watched)
    layer = linear_with_values([4.0, 3.0, 2.0], 9, 6)
    result = paper_clip_(layer, (6,), 1.0, rounds=2)
    assert result.rounds == 2
    assert len({state.numpy().tobytes() for state in seen}) == 3


def test_applications_are_counted() -> None:
    layer = linear_with_values([4.0, 3.0, 2.0], 9, 6)
    result = paper_clip_(layer, (6,), 1.0, inner_steps=3, power_iterations=10, rounds=2)
    # A round: 10 iterations and a residual, each a pair; the target; 3 steps, forward and back.
    assert result.num_matvecs == 3 * 22 + 2 * (1 + 2 * 3)


# --- What it reaches -------------------------------------------------------------------------

CLIPPED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda: nn.Linear(20, 12), (20,)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 8, 8)),
    "conv-stride": (lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1), (3, 8, 8)),
    "conv-reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 7, 7)),
    "conv-groups": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2), (4, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5)),
    "conv-bn": (lambda: [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)], (3, 7, 7)),
    "weight-norm": (lambda: parametrizations.weight_norm(nn.Linear(9, 8)), (9,)),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_norm_is_reduced(name: str) -> None:
    make, in_shape = CLIPPED[name]
    layer = make()
    before = dense_norm(layer, in_shape)
    bound = 0.7 * before
    result = paper_clip_(layer, in_shape, bound, lr=0.1, power_iterations=50)
    after = dense_norm(layer, in_shape)
    assert result.converged
    assert result.norm_after <= bound
    assert 0.8 * bound < after < 1.1 * bound
    # A Ritz value is a lower bound.
    assert result.norm_before == pytest.approx(before, rel=0.05)
    assert result.norm_after <= after * (1 + 1e-5)


def test_few_power_iterations_leave_too_much() -> None:
    """The estimate of its own that the algorithm stops at is too small."""
    layer = nn.Conv2d(8, 8, 3, padding=1)
    result = paper_clip_(layer, (8, 10, 10), 0.6, **PUBLISHED)
    assert result.converged
    assert 1.02 * 0.6 < dense_norm(layer, (8, 10, 10)) < 1.6 * 0.6


def test_published_settings() -> None:
    assert PUBLISHED == {"lr": 0.35, "inner_steps": 5, "power_iterations": 10}
    assert PUBLISHED_WITHOUT_BATCH_NORM == {"lr": 0.35, "inner_steps": 1, "power_iterations": 10}


def test_half_precision() -> None:
    layer = nn.Linear(16, 12).to(torch.bfloat16)
    bound = 0.6 * dense_norm(layer, (16,))
    result = paper_clip_(layer, (16,), bound, lr=1.0, inner_steps=1, power_iterations=50)
    assert layer.weight.dtype == torch.bfloat16
    assert result.converged
    assert dense_norm(layer, (16,)) < 1.05 * bound


def test_small_steps_are_not_lost_to_half_precision() -> None:
    """A step shorter than half a unit in the last place moves nothing; many of them do."""
    layer = linear_with_values([3.0], 7, 5).to(torch.bfloat16)
    before = dense_norm(layer, (5,))
    paper_clip_(layer, (5,), 1.5, lr=1e-4, inner_steps=1, power_iterations=20, rounds=300)
    assert dense_norm(layer, (5,)) < before - 0.5 * (1 - (1 - 1e-4) ** 300) * 1.5


def test_same_seed_same_result() -> None:
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        layer = nn.Conv2d(3, 4, 3)
        generator = torch.Generator().manual_seed(seed)
        paper_clip_(layer, (3, 6, 6), 0.5, lr=0.1, generator=generator)
        results.append(layer.weight.detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# --- Where it fails --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("lr", [1.0, 1e30])
def test_divergence_leaves_the_layer_as_it_was(lr: float, dtype: torch.dtype) -> None:
    layer = conv2d_with(lambda w: 3 * w, 8, 8, 3, padding=1).to(dtype)
    disturb(layer)
    before = layer.weight.detach().clone()
    result = paper_clip_(layer, (8, 12, 12), 1.0, lr=lr)
    assert not result.converged
    assert result.norm_after == result.norm_before > 1
    assert 1 <= result.rounds < 100
    assert torch.equal(layer.weight, before)


def test_estimate_that_is_not_finite_is_divergence() -> None:
    layer = conv2d_with(lambda w: torch.full_like(w, 3e38), 2, 3, 3)  # a norm beyond float32
    before = state(layer)
    result = paper_clip_(layer, (2, 6, 6), 1.0)
    assert not result.converged
    assert_same(before, state(layer))


def test_too_few_rounds_are_not_called_converged() -> None:
    layer = conv2d_with(lambda w: 3 * w, 3, 4, 3)
    result = paper_clip_(layer, (3, 6, 6), 0.5, lr=0.01, rounds=2)
    assert result == PaperClipResult(
        result.norm_before, result.norm_after, result.num_matvecs, 2, False
    )
    assert 0.5 < result.norm_after < result.norm_before


@pytest.mark.parametrize("at", [1, 2, 3])
def test_error_in_a_later_round_restores_the_layer(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > at:
            raise KeyboardInterrupt
        return leading_spectrum(*args, **kwargs)

    monkeypatch.setattr(paper_clip, "leading_spectrum", failing)
    layer = conv2d_with(lambda w: 3 * w, 3, 4, 3)
    before = layer.weight.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        paper_clip_(layer, (3, 6, 6), 0.5, lr=0.01)
    assert torch.equal(layer.weight, before)


# --- Rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
def test_layer_within_the_bound_stays_bit_for_bit(case: Case) -> None:
    layer = case.make()
    disturb(layer)
    before, outside = state(layer), surroundings()
    if any(True for module in modules(layer) for _ in module.parameters()):
        result = paper_clip_(layer, case.in_shape, 1e9, power_iterations=2)
        assert result.converged
        assert result.rounds == 0
        assert result.norm_after == result.norm_before
    else:
        with pytest.raises(ValueError, match="no parameters"):
            paper_clip_(layer, case.in_shape, 1e9, power_iterations=2)
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


def test_only_the_content_of_the_weights_changes() -> None:
    layer = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)]
    disturb(layer)
    before, outside = state(layer), surroundings()
    values = {name: p.detach().clone() for name, p in own_parameters(layer).items()}
    paper_clip_(layer, (3, 6, 6), 0.2, lr=0.1, rounds=3)
    assert_same(outside, surroundings())
    after = state(layer)
    changed = [key for key in before if not equal(before[key], after[key])]
    assert changed == ["0: weight", "1: weight"]
    for key in changed:
        assert before[key][:2] == after[key][:2]  # the same tensor at the same place
    for name, parameter in own_parameters(layer).items():
        assert torch.equal(parameter, values[name]) == name.endswith("bias")
    assert [part.training for part in parts(layer)] == [True, True]


BAD = {
    "max_norm": [0.0, -1.0, math.nan, math.inf, True, "1", None],
    "lr": [0.0, -0.1, math.nan, math.inf, None],
    "inner_steps": [0, -1, 1.5, None],
    "power_iterations": [0],
    "rounds": [-1, 2.0],
    "shift": [-1.0, math.nan],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in BAD.items() for v in vs])
def test_bad_settings_are_refused(name: str, value: Any) -> None:
    layer = nn.Conv2d(3, 4, 3)
    before = state(layer)
    arguments: dict[str, Any] = {"max_norm": 0.5, "in_shape": (3, 6, 6), name: value}
    with pytest.raises((ValueError, TypeError), match=rf"{name}|PowerQR"):
        paper_clip_(layer, **arguments)
    assert_same(before, state(layer))


def test_layers_that_cannot_be_clipped_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        paper_clip_(nn.AvgPool2d(2), (2, 4, 4), 1.0)
    with pytest.raises(sc.NotAffineError, match="ReLU"):
        paper_clip_(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (4,), 1.0)
    with pytest.raises(ValueError, match="cannot be applied"):
        paper_clip_(nn.Conv2d(2, 3, 3), (3, 6, 6), 1.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="scripted"):
        paper_clip_(torch.jit.script(nn.Linear(4, 4)), (4,), 1e-3)
