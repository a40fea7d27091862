"""Parametrize: torch's own mechanism, with the norm that the layer really has."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from parametrize_cases import Residual, Scaled, made, over_cases
from torch import Tensor, nn
from torch.nn.utils import parametrize
from training_cases import EXAMPLE, assert_identical, sgd, small_network, snapshot, train

from oracle import dense_norm
from spectralclip import NormWarning, attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods._true_norm import TrueNorm
from spectralclip.methods.parametrize import Parametrize


def norms_of(attachment: Any) -> dict[str, float]:
    return {
        name: dense_norm(layer.modules[0], layer.in_shapes[0])
        for name, layer in attachment.layers.items()
    }


# --- One layer -------------------------------------------------------------------------------


def test_copies_outlive_what_they_are_copies_of() -> None:
    """They share a class that torch has made, and takes the weight out of when it is removed."""
    model = nn.Sequential(nn.Linear(4, 3))
    attachment = attach(model, sgd(model), torch.zeros(1, 4), method=Parametrize(), max_norm=0.1)
    twin = copy.deepcopy(model)
    attachment.remove()
    assert type(model[0]) is nn.Linear
    torch.testing.assert_close(twin(torch.ones(1, 4)), model(torch.ones(1, 4)))


@over_cases
def test_estimate(name: str) -> None:
    module, in_shape = made(name)
    norm = dense_norm(module, in_shape)
    assert Parametrize.estimate(module, in_shape) == pytest.approx(norm, rel=1e-3)


def test_there_is_no_estimate_of_what_is_not_affine() -> None:
    with pytest.raises(OutsideDomain, match=r"Parametrize is not defined for ReLU\(\).*affine"):
        Parametrize.estimate(nn.ReLU(), (3,))


# --- A model in training ---------------------------------------------------------------------


def test_the_bound_holds_in_training() -> None:
    model = small_network()
    optimizer = sgd(model, lr=0.2)
    attachment = attach(model, optimizer, EXAMPLE, method=Parametrize(), max_norm=0.7)
    for index in range(0, 24, 2):
        train(model, optimizer, 2, first=index)
        for name, norm in norms_of(attachment).items():
            assert norm <= 0.7 * 1.02
            assert attachment.norms()[name] == pytest.approx(norm, rel=2e-2)
    raw = [module.parametrizations["weight"].original for module in (model[0], model[3], model[9])]
    assert all(weight.norm() > 0 for weight in raw)


def test_finalize_certifies_plain_layers() -> None:
    model = small_network()
    keys, weights = list(model.state_dict()), [model[i].weight for i in (0, 3, 6, 9)]
    optimizer = sgd(model, lr=0.2)
    attachment = attach(model, optimizer, EXAMPLE, method=Parametrize(), max_norm=0.7)
    assert list(model.state_dict()) != keys
    train(model, optimizer, 6)
    results = attachment.finalize(certify=True)
    assert list(model.state_dict()) == keys
    assert all(model[i].weight is weight for i, weight in zip((0, 3, 6, 9), weights, strict=True))
    assert set(results) == {"0", "3", "6", "9"}
    for name, norm in norms_of(attachment).items():
        assert norm <= 0.7 <= 0.7 * results[name].norm_before / 0.699
    train(model, optimizer, 2)  # the optimizer still has them


def test_remove_keeps_what_the_model_computes() -> None:
    model = small_network()
    attachment = attach(model, sgd(model), EXAMPLE, method=Parametrize(), max_norm=0.5)
    model.eval()
    before = model(EXAMPLE)
    attachment.remove()
    attachment.remove()
    assert not any(map(parametrize.is_parametrized, model.modules()))
    torch.testing.assert_close(model(EXAMPLE), before, rtol=1e-3, atol=1e-4)


def test_goes_on_exactly() -> None:
    def begin() -> tuple[Any, Any, Any]:
        model = small_network()
        optimizer = sgd(model)
        schedule = lambda step: 0.97**step  # noqa: E731
        return (
            model,
            optimizer,
            attach(
                model,
                optimizer,
                EXAMPLE,
                method=Parametrize(check_every=4),
                max_norm=0.8,
                schedule=schedule,
            ),
        )

    first = begin()
    train(first[0], first[1], 5)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    train(first[0], first[1], 5, first=5)
    second = begin()
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(second[0], second[1], 5, first=5)
    for ours, theirs in zip(first, second, strict=True):
        assert_identical(ours.state_dict(), theirs.state_dict())


def test_same_seed_same_run_and_the_global_generator_is_left_alone() -> None:
    runs = []
    for _ in range(2):
        model = small_network()
        optimizer = sgd(model)
        before = torch.get_rng_state()
        attach(model, optimizer, EXAMPLE, method=Parametrize(check_every=2), max_norm=0.7)
        train(model, optimizer, 3)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append(model.state_dict())
    assert_identical(*runs)


def test_frozen_layers_are_left_alone() -> None:
    model = small_network()
    model[3].weight.requires_grad_(False)
    attach(model, sgd(model), EXAMPLE, method=Parametrize(), max_norm=0.1)
    assert [parametrize.is_parametrized(model[i]) for i in (0, 3, 6)] == [True, False, True]


def test_a_layer_that_is_freed_later_is_held_from_then_on() -> None:
    model = small_network()
    model[3].weight.requires_grad_(False)
    weight, optimizer = model[3].weight, sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=Parametrize(), max_norm=0.1)
    train(model, optimizer, 1)
    assert "3" not in attachment.norms()
    weight.requires_grad_(True)
    train(model, optimizer, 2, first=1)
    assert attachment.norms()["3"] == pytest.approx(0.1)
    assert norms_of(attachment)["3"] == pytest.approx(0.1, rel=2e-2)
    attachment.remove()
    assert model[3].weight is weight
    assert dense_norm([model[3]], (4, 10, 10)) <= 0.1 * 1.002


def test_a_layer_that_is_freed_while_it_is_not_finite_is_held_once_it_is() -> None:
    model = small_network()
    model[3].weight.requires_grad_(False)
    attachment = attach(model, sgd(model), EXAMPLE, method=Parametrize(), max_norm=0.1)
    good = model[3].weight.detach().clone()
    with torch.no_grad():
        model[3].weight.fill_(math.nan)
    model[3].weight.requires_grad_(True)
    with pytest.warns(NormWarning, match="layer '3': it has been freed, and cannot be held yet"):
        attachment.step()
    attachment.step()
    assert math.isnan(attachment.norms()["3"])
    with torch.no_grad():
        model[3].weight.copy_(good)
    attachment.step()
    assert attachment.norms()["3"] == pytest.approx(0.1)


def test_layers_that_are_not_linear_in_their_weight_are_left_alone() -> None:
    class Sum(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 5)
            self.other = nn.Parameter(torch.randn(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight + self.other)

    model = nn.Sequential(Sum(), nn.ReLU(), Residual(5, 5), Scaled(5), nn.Linear(5, 5))
    attachment = attach(model, sgd(model), torch.zeros(1, 5), method=Parametrize())
    assert list(attachment.layers) == ["3", "4"]


class TwoSizes(nn.Module):
    """One convolution, used at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        small: Tensor = self.conv(self.conv(x)[..., ::3, ::3])
        return small


def test_a_layer_used_at_two_sizes_is_within_its_bound_at_both() -> None:
    model = TwoSizes()
    attach(model, sgd(model), torch.zeros(1, 2, 12, 12), method=Parametrize(), max_norm=0.3)
    norms = [dense_norm(model.conv, (2, size, size)) for size in (12, 4)]
    assert norms[0] > 1.02 * norms[1]
    assert norms[0] == pytest.approx(0.3, rel=1e-3)


def test_weights_that_are_not_finite_are_reported_once() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=Parametrize(), max_norm=0.7)
    good = snapshot(model)
    with torch.no_grad():
        model[0].parametrizations["weight"].original[0, 0, 0, 0] = math.nan
    with pytest.warns(NormWarning, match="layer '0': its weights or statistics are NaN"):
        attachment.step()
    assert math.isnan(attachment.norms()["0"])
    attachment.step()
    model(EXAMPLE)
    model.load_state_dict(good)
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(0.7)


def test_a_layer_of_zeros() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3))
    nn.init.zeros_(model[0].weight)
    optimizer = sgd(model, lr=1.0)
    attachment = attach(
        model, optimizer, torch.zeros(1, 2, 6, 6), method=Parametrize(), max_norm=0.1
    )
    x = torch.randn(4, 2, 6, 6)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - 1).square().sum().backward()
        optimizer.step()
    assert dense_norm(model[0], (2, 6, 6)) == pytest.approx(0.1, rel=1e-2)
    assert attachment.norms()["0"] == pytest.approx(0.1)


def test_settings() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        Parametrize(iterations=0)
    with pytest.raises(ValueError, match="check_every must be at least 0"):
        Parametrize(check_every=-1)


def test_gradient_accumulation_is_that_of_the_whole_batch() -> None:
    gradients = []
    for halves in (False, True):
        model = small_network().double().eval()
        attach(model, sgd(model), EXAMPLE.double(), method=Parametrize(), max_norm=0.7)
        for module in model.modules():
            if isinstance(module, TrueNorm):
                module.training = True
        x = torch.linspace(0, 1, 8 * 100, dtype=torch.float64).reshape(8, 1, 10, 10)
        for part in x.chunk(2) if halves else [x]:
            model(part).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for whole, summed in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, summed)
