"""A parametrization by the true norm: one layer, its gradient, and its vectors."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from parametrize_cases import Residual, made, over_cases
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from training_cases import assert_identical, snapshot

from oracle import dense_norm
from spectralclip.methods import _true_norm
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods._true_norm import TrueNorm
from spectralclip.methods.parametrize import true_spectral_norm


def parts(module: Any) -> TrueNorm:
    """The parametrization of a module."""
    found = module.parametrizations["weight"][0]
    assert isinstance(found, TrueNorm)
    return found


def refresh(module: Any) -> None:
    """Follow the vectors even though the weight is the same."""
    parts(module)._seen = (0, 0)
    parts(module).sums.zero_()
    parts(module).refresh()


@over_cases
def test_the_true_norm_is_bounded(name: str) -> None:
    module, in_shape = made(name)
    norm = dense_norm(module, in_shape)
    assert true_spectral_norm(module, in_shape, 0.6 * norm) is module
    assert dense_norm(module, in_shape) == pytest.approx(0.6 * norm, rel=1e-3)


@over_cases
def test_a_layer_within_its_bound_is_left_as_it_is(name: str) -> None:
    module, in_shape = made(name, double=False)
    weight = module.weight.detach().clone()
    true_spectral_norm(module, in_shape, 1.01 * dense_norm(module, in_shape))
    assert torch.equal(module.weight, weight)
    module.train()
    assert torch.equal(module.weight, weight)


def test_where_torch_bounds_the_reshaped_kernel() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1).double()
    with torch.no_grad():
        conv.weight.abs_()
    theirs, ours = copy.deepcopy(conv), copy.deepcopy(conv)
    parametrizations.spectral_norm(theirs, n_power_iterations=50)
    true_spectral_norm(ours, (4, 10, 10))
    assert dense_norm(theirs, (4, 10, 10)) > 2
    assert dense_norm(ours, (4, 10, 10)) == pytest.approx(1, rel=1e-3)


def dense_weight(weight: Tensor, in_shape: tuple[int, ...], conv: nn.Conv2d) -> Tensor:
    """The matrix of a convolution as a differentiable function of its weight."""
    n = math.prod(in_shape)
    basis = torch.eye(n, dtype=weight.dtype).reshape(n, *in_shape)
    return conv._conv_forward(basis, weight, None).reshape(n, -1).T


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("share", [0.6, 1.5])
def test_gradient_through_the_norm(
    mode: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=2, padding_mode=mode).double()
    in_shape = (2, 6, 6)
    c = share * dense_norm(conv, in_shape)
    weight = conv.weight.detach().clone().requires_grad_()
    sigma = torch.linalg.matrix_norm(dense_weight(weight, in_shape, conv), 2)
    direction = torch.randn(weight.shape, dtype=torch.float64)
    (direction * weight * torch.clamp(c / sigma, max=1)).sum().backward()
    true_spectral_norm(conv, in_shape, c)
    # To the last digit: the search stops at three.
    monkeypatch.setattr(_true_norm, "SETTLED", -1.0)
    parts(conv).iterations = 60
    refresh(conv)
    (direction * conv.weight).sum().backward()
    original = conv.parametrizations["weight"].original
    torch.testing.assert_close(original.grad, weight.grad, rtol=1e-5, atol=1e-7)


def test_evaluation_costs_nothing_and_changes_nothing() -> None:
    conv = true_spectral_norm(nn.Conv2d(3, 4, 3), (3, 8, 8), 0.3).eval()
    with torch.no_grad():
        conv.parametrizations["weight"].original.mul_(1.5)
    before, spent = snapshot(conv), parts(conv).num_matvecs
    conv(torch.randn(2, 3, 8, 8))
    assert_identical(snapshot(conv), before)
    assert parts(conv).num_matvecs == spent
    # The direction is the same, so that even so the norm is right.
    assert dense_norm(conv, (3, 8, 8)) == pytest.approx(0.3, rel=1e-3)


def test_the_vectors_follow_the_weight_once_it_has_changed() -> None:
    conv = true_spectral_norm(nn.Conv2d(3, 4, 3), (3, 8, 8), 0.3)
    spent = parts(conv).num_matvecs
    conv(torch.randn(2, 3, 8, 8))
    assert parts(conv).num_matvecs == spent
    with torch.no_grad():
        conv.parametrizations["weight"].original.copy_(torch.randn(4, 3, 3, 3))
    assert dense_norm(conv, (3, 8, 8)) > 0.4  # not yet
    for _ in range(3):  # the first of three uses in one step
        conv(torch.randn(2, 3, 8, 8)).sum().backward()
    assert 10 < parts(conv).num_matvecs - spent < 100
    assert dense_norm(conv, (3, 8, 8)) == pytest.approx(0.3, rel=2e-3)


def test_evaluation_begins_with_fresh_vectors() -> None:
    model = nn.Sequential(true_spectral_norm(nn.Linear(30, 20), (30,), 0.3))
    with torch.no_grad():
        model[0].parametrizations["weight"].original.copy_(torch.randn(20, 30))
    model.eval()
    assert dense_norm(model, (30,)) == pytest.approx(0.3, rel=2e-3)


def test_two_forward_passes_before_the_backward_one() -> None:
    layer = true_spectral_norm(nn.Linear(8, 6), (8,), 0.1)
    first = layer(torch.ones(1, 8)).sum()
    refresh(layer)  # with a graph that is alive
    second = layer(torch.ones(1, 8)).sum()
    (first + second).backward()
    assert bool(torch.isfinite(layer.parametrizations["weight"].original.grad).all())


def test_removal_leaves_the_plain_layer() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate").double()
    keys, parameter, kind = list(conv.state_dict()), conv.weight, type(conv)
    before = parameter.detach().clone()
    norm = dense_norm(conv, (3, 6, 6))
    true_spectral_norm(conv, (3, 6, 6), 0.5 * norm).eval()
    parametrize.remove_parametrizations(conv, "weight")
    assert type(conv) is kind
    assert conv.weight is parameter
    assert sorted(conv.state_dict()) == sorted(keys)
    torch.testing.assert_close(conv.weight.detach(), 0.5 * before, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    conv = true_spectral_norm(nn.Conv2d(3, 4, 3).to(dtype), (3, 6, 6), 0.3)
    assert conv.weight.dtype == dtype
    with torch.no_grad():
        conv.parametrizations["weight"].original.mul_(2)
    conv.weight.sum().backward()
    assert dense_norm(conv, (3, 6, 6)) == pytest.approx(0.3, rel=2e-2)


def test_precision_may_change_later() -> None:
    conv = true_spectral_norm(nn.Conv2d(3, 4, 3), (3, 9, 9), 0.3).double()
    with torch.no_grad():
        conv.parametrizations["weight"].original.add_(0.1)
    assert conv(torch.zeros(1, 3, 9, 9).double()).dtype == torch.float64
    assert dense_norm(conv, (3, 9, 9)) == pytest.approx(0.3, rel=2e-3)


def test_copies_are_apart() -> None:
    conv = true_spectral_norm(nn.Conv2d(3, 4, 3), (3, 6, 6), 0.3)
    twin = copy.deepcopy(conv)
    before = snapshot(conv)
    with torch.no_grad():
        twin.parametrizations["weight"].original.copy_(torch.randn(4, 3, 3, 3))
    twin(torch.zeros(1, 3, 6, 6))
    assert_identical(snapshot(conv), before)
    assert dense_norm(twin, (3, 6, 6)) == pytest.approx(0.3, rel=1e-2)


def test_outside_the_domain() -> None:
    with pytest.raises(OutsideDomain, match="not linear in this weight alone"):
        true_spectral_norm(Residual(5, 5), (5,))
    with pytest.raises(OutsideDomain, match="needs a parameter 'weight'"):
        true_spectral_norm(parametrizations.weight_norm(nn.Linear(5, 5)), (5,))
    with pytest.raises(OutsideDomain, match="needs a parameter 'weight'"):
        true_spectral_norm(nn.ReLU(), (5,))
    with pytest.raises(OutsideDomain, match=r"BatchNorm1d.*running variance.*ClipBatchNorm"):
        true_spectral_norm(nn.BatchNorm1d(5), (5,))
    layer = nn.Linear(5, 5)
    with pytest.raises(ValueError, match="max_norm must be a positive"):
        true_spectral_norm(layer, (5,), 0.0)
    with pytest.raises(ValueError, match="shape"):
        true_spectral_norm(layer, (6,))
    assert not parametrize.is_parametrized(layer)
