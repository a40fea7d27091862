"""Layers that compute something else from their weight, until they are made plain again."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from orthogonal_cases import method_of, over_all, over_methods
from torch import nn
from training_cases import EXAMPLE, assert_identical, sgd, small_network, snapshot, train

from oracle import dense_norm
from spectralclip import NormWarning, attach
from spectralclip.methods.baselines.soc import SOC


def test_what_is_outside_the_domain_is_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1))
    attachment = attach(model, None, torch.zeros(1, 1, 6, 6), method=SOC())
    assert list(attachment.layers) == ["2"]
    assert "forward" not in vars(model[0])


@over_all
def test_keys_parameters_and_hooks_stay(name: str) -> None:
    model = small_network()
    seen: list[tuple[int, ...]] = []
    model[6].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    before, parameters = snapshot(model), list(model.parameters())
    attachment = attach(model, sgd(model), EXAMPLE, method=method_of(name))
    assert_identical(snapshot(model), before)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    seen.clear()
    model(EXAMPLE)
    assert seen == [(2, 6, 5, 5)]
    attachment.remove()
    attachment.remove()
    assert list(model.state_dict()) == list(before)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


@over_all
def test_goes_on_exactly(name: str) -> None:
    def begin() -> tuple[Any, Any, Any]:
        model = small_network()
        optimizer = sgd(model)
        schedule = lambda step: 0.9**step  # noqa: E731
        return (
            model,
            optimizer,
            attach(model, optimizer, EXAMPLE, method=method_of(name), schedule=schedule),
        )

    first = begin()
    train(first[0], first[1], 2)
    assert set(first[2].norms().values()) == {0.9**2}
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    train(first[0], first[1], 2, first=2)
    second = begin()
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert second[2].norms() == pytest.approx({key: 0.9**2 for key in second[2].layers})
    train(second[0], second[1], 2, first=2)
    for ours, theirs in zip(first, second, strict=True):
        assert_identical(ours.state_dict(), theirs.state_dict())


@over_all
def test_copies_are_apart_and_can_be_pickled(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1))
    attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name), max_norm=0.5)
    x = torch.randn(1, 2, 6, 6)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin[0].weight.copy_(torch.randn(2, 2, 3, 3))
        assert not torch.allclose(twin(x), model(x))


@over_all
def test_half_precision_and_autocast(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1))
    attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name))
    x = torch.randn(1, 2, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x), model(x.float()))
    low = copy.deepcopy(model).bfloat16()
    assert low(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(low(x.bfloat16()).float(), model(x), rtol=0.1, atol=0.1)


@over_methods
def test_single_inputs_without_a_batch(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1))
    attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name))
    x = torch.randn(2, 6, 6)
    torch.testing.assert_close(model(x), model(x[None])[0])


def test_frozen_layers_are_left_alone() -> None:
    model = small_network()
    model[6].weight.requires_grad_(False)
    attachment = attach(model, sgd(model), EXAMPLE, method=SOC())
    assert "forward" not in vars(model[6])
    attachment.finalize()


@over_all
def test_layers_that_are_freed_are_exchanged_after_their_first_step(name: str) -> None:
    def begin() -> tuple[Any, Any, Any]:
        model = small_network()
        model[6].weight.requires_grad_(False)
        optimizer = sgd(model)
        attachment = attach(model, optimizer, EXAMPLE, method=method_of(name), max_norm=0.8)
        return model, optimizer, attachment

    first = begin()
    model, optimizer, attachment = first
    train(model, optimizer, 1)
    assert "6" not in attachment.norms()
    model[6].weight.requires_grad_(True)
    train(model, optimizer, 1, first=1)
    assert attachment.norms()["6"] == 0.8
    assert "forward" in vars(model[6])
    states = copy.deepcopy([part.state_dict() for part in first])
    train(model, optimizer, 2, first=2)
    # A run that goes on from there begins with the layer in its place.
    second = begin()
    second[0][6].weight.requires_grad_(True)
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    train(second[0], second[1], 2, first=2)
    assert_identical([part.state_dict() for part in first], [p.state_dict() for p in second])
    attachment.remove()
    assert dense_norm([model[6]], (6, 5, 5)) <= 0.8 * (1 + 1e-5)


@over_all
def test_weights_that_are_not_finite_are_reported_once_and_it_goes_on(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    attachment = attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name), max_norm=0.5)
    for broken in (math.nan, math.inf):
        attachment.step()
        assert attachment.norms() == {"0": 0.5, "1": 0.5}
        kept = model[1].weight.detach().clone()
        model[1].weight.data[0, 0, 0, 0] = broken
        with pytest.warns(
            NormWarning, match=" on layer '1': its weights or statistics are NaN"
        ) as said:
            for _ in range(3):
                attachment.step()
                assert attachment.norms()["0"] == 0.5
                assert math.isnan(attachment.norms()["1"])
        assert len(said) == 1
        model[1].weight.data.copy_(kept)
    attachment.step()
    assert attachment.norms() == {"0": 0.5, "1": 0.5}


@over_methods
def test_another_size_of_image_is_refused(name: str) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1))
    attachment = attach(model, None, torch.zeros(1, 2, 6, 9), method=method_of(name))
    for shape in ((1, 2, 6, 6), (1, 2, 12, 9), (2, 9, 6)):
        expected = r"Layer '1' .* images of \(6, 9\), and got .*attach it with example inputs"
        with pytest.raises(ValueError, match=expected):
            model(torch.zeros(shape))
    model(torch.zeros(2, 6, 9))
    attachment.remove()
    model(torch.zeros(1, 2, 6, 9))


@over_methods
def test_how_to_load_what_is_left(name: str) -> None:
    """The kernel does not fit the model as it was built, but one that is built as it is now."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2))
    attach(model, None, torch.zeros(1, 2, 8, 8), method=method_of(name)).remove()
    left = model[0]
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        nn.Conv2d(2, 4, 3, padding=1, groups=2).load_state_dict(left.state_dict())
    again = nn.Conv2d(
        left.in_channels,
        left.out_channels,
        left.kernel_size,
        left.stride,
        left.padding,
        left.dilation,
        left.groups,
        padding_mode=left.padding_mode,
    )
    again.load_state_dict(left.state_dict())
    x = torch.randn(3, 2, 8, 8)
    assert torch.equal(again(x), left(x))


@over_methods
def test_the_optimizer_forgets_what_does_not_fit(name: str) -> None:
    """And that alone: layers that keep their shape keep what is remembered of them."""
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    attachment = attach(model, optimizer, EXAMPLE, method=method_of(name))
    train(model, optimizer, 2)
    bare = small_network()
    attachment.remove()
    train(model, optimizer, 1, first=2)
    steps = {key: float(optimizer.state[p]["step"]) for key, p in model.named_parameters()}
    old = dict(bare.named_parameters())
    grown = {key for key, p in model.named_parameters() if p.shape != old[key].shape}
    assert "0.weight" in grown and "9.weight" not in grown
    assert steps == {key: 1 if key in grown else 3 for key in steps}


def test_a_grown_kernel_is_trained_on_by_a_new_optimizer() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=SOC())
    train(model, optimizer, 1)
    weight = model[0].weight
    attachment.remove()
    assert model[0].weight is weight
    assert weight.shape == (4, 1, 11, 11)
    assert weight.grad is None
    assert model[9].weight.grad is not None  # a dense layer keeps its shape, and all else
    before = weight.detach().clone()
    train(model, sgd(model), 1)
    assert not torch.equal(weight, before)
