"""Miyato: torch's own spectral normalization, times the bound, and plain layers after it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized
from training_cases import (
    EXAMPLE,
    assert_identical,
    loss_of,
    sgd,
    small_network,
    snapshot,
    train,
)

from oracle import dense_norm, kernel_norm
from spectralclip import Attachment, NormWarning, attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines.miyato import Miyato


def attached(
    model: nn.Module, *, lr: float = 0.05, **options: Any
) -> tuple[torch.optim.SGD, Attachment]:
    optimizer = sgd(model, lr)
    return optimizer, attach(model, optimizer, EXAMPLE, method=Miyato(), **options)


# --- The estimate, and where it is wrong ----------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(9, 7),
        lambda: nn.Conv1d(3, 4, 3),
        lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode="reflect"),
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        lambda: nn.Conv3d(2, 3, 2),
        lambda: nn.ConvTranspose2d(3, 5, 3, stride=2),
        lambda: nn.Conv2d(3, 4, 3).double(),
        lambda: nn.Linear(5, 5).bfloat16(),
    ],
)
def test_the_estimate_is_the_norm_of_the_reshaped_kernel(make: Callable[[], nn.Module]) -> None:
    layer = make()
    assert Miyato.estimate(layer, (1, 1, 1)) == pytest.approx(kernel_norm(layer), rel=1e-6)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.ReLU(), [nn.Linear(2, 2)] * 2])
def test_other_layers_are_refused(layer: Any) -> None:
    with pytest.raises(OutsideDomain, match="Miyato is not defined for"):
        Miyato.estimate(layer, (3, 4, 4))


def test_the_estimate_is_true_where_the_kernel_is_the_matrix() -> None:
    for layer, in_shape in ((nn.Linear(6, 4), (6,)), (nn.Conv2d(4, 5, 1), (4, 3, 3))):
        truth = dense_norm([layer], in_shape)
        assert Miyato.estimate(layer, in_shape) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_the_true_norm_of_convolutions_is_about_twice_the_estimate(mode: str) -> None:
    ratios = []
    for _ in range(10):
        layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode)
        ratios.append(dense_norm([layer], (4, 8, 8)) / Miyato.estimate(layer, (4, 8, 8)))
    assert min(ratios) > 1.3 and max(ratios) < 3
    assert 1.5 < np.mean(ratios) < 2.5


@pytest.mark.parametrize("size", [3, 5, 7])
def test_the_truth_is_up_to_the_width_of_the_kernel_times_the_estimate(size: int) -> None:
    layer = nn.Conv2d(2, 2, size, padding=size // 2)
    assert 1.4 < dense_norm([layer], (2, 12, 12)) / Miyato.estimate(layer, (2, 12, 12)) < size
    # A constant kernel: the sum of its entries, but for the border, against the root of squares.
    layer.weight.data.fill_(0.3)
    ratio = dense_norm([layer], (2, 12, 12)) / Miyato.estimate(layer, (2, 12, 12))
    assert 0.75 * size < ratio <= size


def test_the_true_norm_depends_on_the_image_and_the_estimate_does_not() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    small, large = dense_norm([layer], (2, 2, 2)), dense_norm([layer], (2, 12, 12))
    assert large > 1.15 * small
    assert Miyato.estimate(layer, (2, 2, 2)) == Miyato.estimate(layer, (2, 12, 12))


def test_with_groups_the_estimate_can_be_too_large() -> None:
    """Equal kernels one below the other: sqrt(16) times the length of one, the truth below 3."""
    layer = nn.Conv2d(16, 16, 3, padding=1, groups=16)
    layer.weight.data.copy_(layer.weight.data[:1].expand_as(layer.weight))
    length = float(layer.weight[0].detach().norm())
    assert Miyato.estimate(layer, (16, 6, 6)) == pytest.approx(4 * length, rel=1e-5)
    assert dense_norm([layer], (16, 6, 6)) < 3 * length


# --- While it is attached -------------------------------------------------------------------


def test_it_is_the_normalization_of_torch_times_the_bound() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 64, 3))
    twin = copy.deepcopy(model)
    attachment = attach(model, sgd(model), EXAMPLE, method=Miyato(), max_norm=0.5)
    for index in (0, 2):
        parametrizations.spectral_norm(twin[index])
        vectors = model[index].parametrizations["weight"][0].state_dict()
        twin[index].parametrizations["weight"][0].load_state_dict(vectors)
    x = torch.randn(5, 1, 10, 10)
    for _ in range(3):
        ours = model(x)
        hidden = nn.functional.conv2d(x, 0.5 * twin[0].weight, twin[0].bias)
        theirs = nn.functional.linear(hidden.flatten(1), 0.5 * twin[2].weight, twin[2].bias)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        gradients = [
            torch.autograd.grad(
                out.square().sum(), [net[i].parametrizations.weight.original for i in (0, 2)]
            )
            for out, net in ((ours, model), (theirs, twin))
        ]
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)
    attachment.remove()


def test_kernels_have_the_norm_of_the_bound_and_convolutions_do_not() -> None:
    model = small_network()
    optimizer, attachment = attached(model, lr=0.002, max_norm=0.8)
    train(model, optimizer, 30)
    norms = attachment.norms()
    attachment.remove()
    assert list(attachment.layers) == list(norms) == ["0", "3", "6", "9"]
    for name, layer in attachment.layers.items():
        assert kernel_norm(layer.modules[0]) == pytest.approx(0.8, rel=0.05), name
        assert norms[name] == pytest.approx(0.8, rel=0.05)
    assert dense_norm([model[6]], (6, 5, 5)) > 1.2


def test_one_iteration_lags_behind_weights_that_move_fast() -> None:
    model = small_network()
    optimizer, attachment = attached(model, max_norm=0.8)
    train(model, optimizer, 30)
    attachment.remove()
    assert kernel_norm(model[6]) > 0.8 * 1.2


def test_small_norms_are_raised() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].weight.data.mul_(0.01)
    attach(model, None, torch.zeros(1, 4), method=Miyato(), max_norm=2.0).remove()
    assert kernel_norm(model[0]) == pytest.approx(2, rel=1e-2)


def test_the_bound_follows_the_schedule() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    attachment = attach(
        model,
        None,
        torch.zeros(1, 4),
        method=Miyato(),
        max_norm=2.0,
        schedule=lambda step: 1 / (1 + step),
    )
    for step in range(1, 60):
        model(torch.zeros(1, 4))
        attachment.step()
        assert attachment.norms()["0"] == pytest.approx(2 / (1 + step), rel=0.1)
    attachment.remove()
    assert kernel_norm(model[0]) == pytest.approx(2 / 60, rel=1e-3)


def test_a_look_at_the_norms_is_no_iteration() -> None:
    model = small_network()
    optimizer, attachment = attached(model)
    train(model, optimizer, 2)
    before = copy.deepcopy(attachment.state_dict()["layers"])
    attachment.step()
    assert_identical(before, attachment.state_dict()["layers"])


def test_frozen_layers_stay_plain_until_they_are_freed() -> None:
    model = small_network()
    model[0].weight.requires_grad_(False)
    optimizer, attachment = attached(model, lr=0.002, max_norm=0.5)
    before = model[0].weight.clone()
    train(model, optimizer, 2)
    assert not is_parametrized(model[0]) and is_parametrized(model[3])
    assert torch.equal(model[0].weight, before)
    model[0].weight.requires_grad_(True)
    train(model, optimizer, 20, first=2)
    assert is_parametrized(model[0])
    attachment.remove()
    assert kernel_norm(model[0]) == pytest.approx(0.5, rel=0.02)


# --- Plain layers after it ------------------------------------------------------------------


@pytest.mark.parametrize("end", ["remove", "finalize", "with"])
def test_layers_are_plain_again(end: str) -> None:
    model = small_network()
    plain, types = snapshot(model), [type(module) for module in model]
    weights = [id(parameter) for parameter in model.parameters()]
    optimizer, attachment = attached(model, max_norm=0.7)
    assert list(model.state_dict()) != list(plain)
    train(model, optimizer, 3)
    if end == "with":
        with attachment:
            pass
    else:
        getattr(attachment, end)()
    assert list(model.state_dict()) == list(plain)
    assert [type(module) for module in model] == types
    assert [id(parameter) for parameter in model.parameters()] == weights
    assert not any(is_parametrized(module) for module in model.modules())
    train(model, optimizer, 1)  # the optimizer still holds the weights
    attachment.remove()


@pytest.mark.parametrize("training", [True, False])
def test_removal_keeps_the_function_bit_for_bit(training: bool) -> None:
    model = small_network()
    optimizer, attachment = attached(model, max_norm=0.7)
    train(model, optimizer, 3)
    model.eval()
    before = model(EXAMPLE)
    model.train(training)
    attachment.remove()
    assert model.training == training
    model.eval()
    assert torch.equal(model(EXAMPLE), before)


def test_finalize_clips_the_true_norms() -> None:
    model = small_network()
    optimizer, attachment = attached(model, max_norm=0.7)
    train(model, optimizer, 5)
    results = attachment.finalize()
    assert results["6"].norm_before > 1
    assert dense_norm([model[6]], (6, 5, 5)) <= 0.7 * 1.001


def test_a_weight_under_two_names() -> None:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    attachment = attach(model, sgd(model), torch.zeros(1, 5), method=Miyato(), max_norm=0.3)
    model.eval()
    x = torch.randn(3, 5)
    before = model(x)
    attachment.remove()
    assert first.weight is second.weight
    torch.testing.assert_close(model(x), before, rtol=1e-2, atol=1e-3)


# --- Runs -----------------------------------------------------------------------------------


def test_a_resumed_run_is_the_same_run() -> None:
    runs = []
    for _ in range(2):
        model = small_network()
        optimizer, attachment = attached(model, max_norm=0.7)
        train(model, optimizer, 3)
        runs.append((model, optimizer, attachment))
    states = [copy.deepcopy(part.state_dict()) for part in runs[1]]
    again = small_network(seed=5)
    runs[1] = (again, *attached(again, max_norm=0.7))
    for part, state in zip(runs[1], states, strict=True):
        part.load_state_dict(state)
    for model, optimizer, _ in runs:
        train(model, optimizer, 3, first=3)
    for first, second in zip(*runs, strict=True):
        assert_identical(first.state_dict(), second.state_dict())


def test_the_state_alone_brings_back_vectors_and_bound() -> None:
    model = nn.Sequential(nn.Linear(6, 6))
    first = attach(
        model, None, torch.zeros(1, 6), method=Miyato(), max_norm=1.0, schedule=lambda s: 2.0 + s
    )
    first.step()
    state = copy.deepcopy(first.state_dict())
    before = copy.deepcopy(model).eval()(torch.ones(1, 6))
    again = nn.Sequential(nn.Linear(6, 6))
    second = attach(again, None, torch.zeros(1, 6), method=Miyato(), max_norm=1.0, seed=7)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():  # the vectors come with the attachment's state, too
        again[0].parametrizations["weight"][0]._v.mul_(-1)
    second.load_state_dict(state)
    assert torch.equal(again.eval()(torch.ones(1, 6)), before)


def test_random_vectors_come_from_the_seed_alone() -> None:
    states = []
    for noise, seed in ((1, 0), (2, 0), (1, 3)):
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        attachment = attach(small_network(), None, EXAMPLE, method=Miyato(), seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        states.append(attachment.state_dict()["layers"])
    assert_identical(states[0], states[1])
    vectors = [state["0"]["vectors"]["_v"] for state in states]
    assert not torch.equal(vectors[0], vectors[2])


def test_weights_that_are_not_finite_are_reported_once_and_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    attachment = attach(model, None, torch.zeros(1, 4), method=Miyato())
    attachment.step()
    original: Any = model[0].parametrizations.weight.original
    good = original.detach().clone()
    with torch.no_grad():
        original[0, 0] = float("nan")
    model(torch.ones(1, 4))  # the vectors are NaN now, too
    with pytest.warns(NormWarning, match="Miyato on layer '0'"):
        attachment.step()
    attachment.step()
    with torch.no_grad():
        original.copy_(good)
    for _ in range(50):
        assert bool(torch.isfinite(model(torch.ones(1, 4))).all())
    attachment.step()
    attachment.remove()
    assert kernel_norm(model[0]) == pytest.approx(1, rel=1e-3)


def test_gradients_accumulate() -> None:
    model = small_network()
    _, attachment = attached(model)
    original: Any = model[0].parametrizations.weight.original
    loss_of(model, 0).backward()
    once = original.grad.clone()
    attachment.step()
    assert torch.equal(original.grad, once)
    loss_of(model, 0).backward()
    assert not torch.equal(original.grad, once)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="power_iterations must be at least 1"):
        Miyato(power_iterations=0)


def test_a_weight_of_zeros_is_refused_before_anything_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    nn.init.zeros_(model[2].weight)
    with pytest.raises(ValueError, match=r"Layer '2' has a weight of zeros.*leave the layer out"):
        attach(model, None, torch.zeros(1, 4), method=Miyato())
    assert not any(is_parametrized(module) for module in model)
    attach(model, None, torch.zeros(1, 4), method=Miyato(), max_norm={"0": 1.0})
    assert bool(torch.isfinite(model(torch.ones(1, 4))).all())


def test_copies_outlive_what_they_are_copies_of() -> None:
    """They share a class that torch has made, and takes the weight out of when it is removed."""
    model = nn.Sequential(nn.Linear(4, 3))
    attachment = attach(model, sgd(model), torch.zeros(1, 4), method=Miyato(), max_norm=0.1)
    twin = copy.deepcopy(model.eval())
    attachment.remove()
    assert type(model[0]) is nn.Linear
    torch.testing.assert_close(twin(torch.ones(1, 4)), model(torch.ones(1, 4)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(self.a(x).relu())
        return result


@pytest.mark.parametrize("bounds", [{"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 1.0}])
def test_a_shared_weight_is_left_within_the_smallest_bound(bounds: dict[str, float]) -> None:
    model = Tied()
    optimizer = sgd(model, 0.01)
    attachment = attach(model, optimizer, torch.zeros(1, 5), method=Miyato(), max_norm=bounds)
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.ones(2, 5)).square().mean().backward()
        optimizer.step()
    attachment.remove()
    assert model.a.weight is model.b.weight
    assert kernel_norm(model.a) == pytest.approx(0.5, rel=1e-2)
