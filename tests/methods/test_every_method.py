"""Every method of `methods.available()`, by the same questions; the answers are in their files."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from method_suite import (
    LONGEST_FILE,
    SINGLES,
    Run,
    begun,
    lines_of,
    norm_reached,
    outside,
    plainness,
    single,
    through_a_file,
    untold,
)
from torch import nn
from training_cases import assert_identical
from untouched import assert_same
from zoo_training import TRAINEES, Trainee

from oracle import dense_norm
from spectralclip import Method
from spectralclip._training import Promise
from spectralclip.methods import available, estimators, get

WITH_NORM = TRAINEES["convnet-bn"]
# What takes long with so many methods is left to the full run of the tests.
QUICK = ("convnet-bn", "convnet-plain")
QUICK_LAYERS = ("dense", "zeros", "circular-stride", "batch-norm")
over_methods = pytest.mark.parametrize("name", available())
over_trainees = pytest.mark.parametrize(
    "trainee",
    [
        pytest.param(one, id=one.name, marks=() if one.name in QUICK else pytest.mark.slow)
        for one in TRAINEES.values()
    ],
)
over_layers = pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, marks=() if layer in QUICK_LAYERS else pytest.mark.slow)
        for layer in SINGLES
    ],
)


def promises() -> list[Any]:
    """All that methods promise of norms, but for compositions: those are not in these tests."""
    return [
        pytest.param(name, promise, id="-".join([name, *map(str, promise.settings.values())]))
        for name in available()
        for promise in get(name).promises
        if get(name)(**promise.settings).compose == "none"
    ]


def begun_or_refused(name: str, trainee: Trainee) -> Run:
    """A run; only what is for batch norms alone may have nothing to do, where there are none."""
    try:
        return begun(name, trainee)
    except ValueError as error:
        assert "found no layer to constrain" in str(error)
        assert not trainee.norm
        layers = begun(name, WITH_NORM).attachment.layers.values()
        assert all(isinstance(layer.modules[0], nn.BatchNorm2d) for layer in layers)
        pytest.skip(f"{name} is for batch norms, and there are none")


# --- How they are written -------------------------------------------------------------------


@over_methods
def test_it_is_final_and_frozen_and_made_without_arguments(name: str) -> None:
    cls = get(name)
    method: Any = cls()
    assert getattr(cls, "__final__", False)
    assert dataclasses.is_dataclass(method)
    assert method == cls()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1


@over_methods
def test_its_file_is_short(name: str) -> None:
    assert lines_of(get(name)) <= LONGEST_FILE


@over_methods
def test_its_docstring_tells_what_to_expect(name: str) -> None:
    assert untold(get(name)) == []


# --- Beside a training ----------------------------------------------------------------------


@pytest.mark.sampled(4)
@over_trainees
@over_methods
def test_save_load_resume_and_remove(name: str, trainee: Trainee) -> None:
    """A run that is killed and resumed is the same run, and it ends with the bare model."""
    bare, before = trainee.model(), outside()
    run = begun_or_refused(name, trainee)
    assert run.taken()
    run.train(2)
    saved = through_a_file(run.states())
    run.train(2, first=2)
    again = begun(name, trainee)
    again.load(saved)
    again.train(2, first=2)
    for first, second in zip(run.states(), again.states(), strict=True):
        assert_identical(first, second)
    assert run.attachment.norms() == again.attachment.norms()
    for one in (run, again):
        one.attachment.remove()
        assert list(one.model.state_dict()) == list(bare.state_dict())
        assert plainness(one.model) == plainness(bare)
    assert_identical(run.model.state_dict(), again.model.state_dict())
    assert_same(before, outside())


@over_methods
def test_the_optimizer_trains_what_it_holds(name: str) -> None:
    """With the method, and after it: a method never takes the weights away from the optimizer."""
    models = []
    for lr in (0.0, 0.05):
        run = begun(name, WITH_NORM, lr=lr)
        run.train(2)
        run.attachment.remove()
        models.append(run.model)
        layers = list(run.attachment.layers)
    still, moved = (dict(model.named_parameters()) for model in models)
    for layer in layers:
        weight = f"{layer.rpartition('+')[0] or layer}.weight"
        assert not torch.equal(still[weight], moved[weight]), weight
    held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    assert {id(parameter) for parameter in run.model.parameters()} == held


@over_methods
def test_gradients_are_left_as_they_are(name: str) -> None:
    run = begun(name, WITH_NORM)
    run.train(1)
    images, labels = WITH_NORM.batch(1)
    run.optimizer.zero_grad()
    nn.functional.cross_entropy(run.model(images), labels).backward()
    before = [copy.deepcopy(parameter.grad) for parameter in run.model.parameters()]
    run.optimizer.step()
    assert_identical(before, [parameter.grad for parameter in run.model.parameters()])


@over_methods
def test_frozen_layers_stay_bit_for_bit(name: str) -> None:
    run = begun(name, WITH_NORM, frozen="0.")
    before = {key: value.clone() for key, value in run.trainee.model().named_parameters()}
    run.train(2)
    run.attachment.remove()
    after = dict(run.model.named_parameters())
    for key in ("0.weight", "0.bias"):
        assert torch.equal(before[key], after[key]), key


@over_methods
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adamw"])
def test_the_optimizer_goes_on_after_it(name: str, adam: bool) -> None:
    """Whatever the optimizer remembers of the weights fits those that are left."""
    run = begun(name, WITH_NORM, adam=adam)
    run.train(2)
    run.attachment.remove()
    before = copy.deepcopy(run.model.state_dict())
    for index in (2, 3):
        images, labels = WITH_NORM.batch(index)
        run.optimizer.zero_grad()
        nn.functional.cross_entropy(run.model(images), labels).backward()
        run.optimizer.step()
    for layer in run.attachment.layers:
        weight = f"{layer.rpartition('+')[0] or layer}.weight"
        assert not torch.equal(run.model.get_parameter(weight), before[weight]), weight


@over_methods
def test_layers_that_are_freed_later_are_taken_up(name: str) -> None:
    """It speaks of the same layers then as where none was frozen."""
    run = begun(name, WITH_NORM)
    run.train(2)
    late = begun(name, WITH_NORM, frozen="0.")
    late.train(1)
    assert "0" not in late.attachment.norms()
    late.model.get_parameter("0.weight").requires_grad_(True)
    late.train(2, first=1)
    assert set(late.attachment.norms()) == set(run.attachment.norms())
    late.attachment.remove()


@over_methods
def test_precision_follows_the_parameters(name: str) -> None:
    run = begun(name, WITH_NORM, dtype=torch.float64)
    run.train(2)
    run.attachment.remove()
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float64}


@pytest.mark.sampled(4)
@over_methods
def test_finalize_leaves_plain_layers_within_the_bound(name: str) -> None:
    bare = WITH_NORM.model()
    run = begun(name, WITH_NORM)
    run.train(2)
    layers = run.taken()
    results = run.attachment.finalize()
    assert set(results) == layers
    assert plainness(run.model) == plainness(bare)
    modules = dict(run.model.named_modules())
    for key, found in run.attachment.layers.items():
        parts = [modules[part] for part in key.split("+")]
        assert max(dense_norm(parts, shape) for shape in found.in_shapes) <= 0.7 * (1 + 2e-3), key
    assert run.attachment.is_removed


# --- What they state of themselves ----------------------------------------------------------


@pytest.mark.sampled(2)
@over_layers
@pytest.mark.parametrize(("name", "promise"), promises())
def test_it_keeps_its_promise(name: str, promise: Promise, layer: str) -> None:
    chosen = single(layer)
    if not promise.covers(chosen.module):
        pytest.skip(f"{name} promises nothing of it")
    try:
        norm = norm_reached(get(name)(**promise.settings), chosen, promise)
    except ValueError as error:
        assert type(error).__name__ == "OutsideDomain" or "found no layer" in str(error)
        pytest.skip(f"{name} refuses it: {error}")
    assert norm <= 1 + promise.margin


@over_layers
@pytest.mark.parametrize("name", estimators())
def test_its_estimate_is_a_function_of_the_layer(name: str, layer: str) -> None:
    """The same for the same random numbers, and nothing is changed by it."""
    estimate, chosen = estimators()[name], single(layer)
    before, state = outside(), copy.deepcopy(chosen.module.state_dict())

    def estimated() -> float | None:
        generator = torch.Generator().manual_seed(9)
        return estimate(chosen.module, chosen.in_shape, generator=generator)

    try:
        found = estimated()
    except ValueError as error:
        assert type(error).__name__ == "OutsideDomain"
        pytest.skip(str(error))
    if found is None or found is NotImplemented:
        pytest.skip(f"{name} has no estimate")
    assert isinstance(found, float) and 0 < found < float("inf")
    assert estimated() == found
    assert_same(before, outside())
    assert_identical(state, chosen.module.state_dict())
    assert all(parameter.grad is None for parameter in chosen.module.parameters())


# --- The questions themselves ---------------------------------------------------------------


def test_a_broken_promise_is_found() -> None:
    """A method that does nothing leaves three times the bound."""
    method: Callable[[], Method] = get("clip_batch_norm")
    promise = Promise(steps=1)
    assert norm_reached(method(), single("batch-norm"), promise) <= 1 + promise.margin
    with pytest.raises(ValueError, match="found no layer"):
        norm_reached(method(), single("dense"), promise)
    idle = get("fast_clip")()  # its first round is a hundred steps away
    assert norm_reached(idle, single("dense"), promise) == pytest.approx(3, rel=1e-4)
    kernel = Promise(of="kernel")
    assert norm_reached(idle, single("zeros"), kernel) < 2.5  # below the true norm of 3


def test_the_networks_have_the_layers_of_the_originals() -> None:
    for norm in (True, False):
        kinds = {
            key: [m for m in TRAINEES[f"{key}-{'bn' if norm else 'plain'}"].model().modules()]
            for key in ("resnet18", "dla")
        }
        for key, convolutions in (("resnet18", 20), ("dla", 43)):
            found = [m for m in kinds[key] if isinstance(m, nn.Conv2d)]
            norms = [m for m in kinds[key] if isinstance(m, nn.BatchNorm2d)]
            assert len(found) == convolutions
            assert len(norms) == (convolutions if norm else 0)


def test_a_network_is_the_same_for_the_same_seed() -> None:
    trainee = TRAINEES["convnet-bn"]
    assert_identical(trainee.model().state_dict(), trainee.model().state_dict())
    other = trainee.model(seed=4).state_dict()
    assert not torch.equal(trainee.model().state_dict()["0.weight"], other["0.weight"])


def test_docstrings_that_tell_too_little_are_found() -> None:
    class Silent(Method):
        """It takes convolutions."""

        def start(self, *args: Any) -> Any: ...

    assert untold(Silent) == ["citation", "promise", "cost", "failure", "example"]
