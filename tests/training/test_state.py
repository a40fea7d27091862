"""States that are no states: refused with a reason, and nothing has changed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attach_cases import Tried, attached, over_methods
from seeds import seeded
from torch import nn
from training_cases import sgd, small_network

from spectralclip import Attachment, attach, methods


def network(width: int = 4) -> nn.Module:
    with seeded(0):
        return nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1, padding_mode="circular"),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="reflect"),
            nn.Flatten(),
            nn.Linear(width * 36, 3),
        )


def started(name: str, width: int = 4, steps: int = 2) -> tuple[nn.Module, Attachment]:
    """A method at work, a few steps into a training without gradients."""
    model = network(width)
    settings = {"every": 1, "power_iterations": 5} if name == "virmaux" else {}
    method = methods.get(name)(**settings)
    attachment = attach(model, None, torch.zeros(1, 2, 6, 6), method=method, max_norm=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of methods that want more than steps
        for _ in range(steps):
            attachment.step()
    return model, attachment


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The numbers and tensors of a state, by where they are."""
    if isinstance(value, dict):
        parts = [flat(one, f"{path}/{key}") for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [flat(one, f"{path}/{index}") for index, one in enumerate(value)]
    else:
        return {path: value}
    return {key: one for part in parts for key, one in part.items()}


def assert_same(found: Any, expected: Any) -> None:
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key
        else:
            assert found[key] == value or (found[key] != found[key] and value != value), key


# Whole states

NO_STATES: dict[str, Any] = {
    "None": None,
    "empty": {},
    "list": [],
    "text": "state",
    "number": 3,
    "model": network().state_dict(),
    "attachment": object(),
    "optimizer": torch.optim.SGD(network().parameters(), lr=0.1).state_dict(),
}


@pytest.mark.parametrize("which", NO_STATES)
def test_what_is_no_state_is_refused(which: str) -> None:
    _, attachment = started("farnia")
    before = copy.deepcopy(attachment.state_dict())
    with pytest.raises((TypeError, ValueError), match=r"Attachment\.state_dict\(\)"):
        attachment.load_state_dict(NO_STATES[which])
    assert_same(attachment.state_dict(), before)


@pytest.mark.parametrize(
    ("entry", "value", "complaint"),
    [
        ("steps", None, "'steps' of the state must be the steps of each optimizer, got None"),
        ("steps", [-1], "'steps' of the state"),
        ("steps", "3", "'steps' of the state"),
        ("steps", 0.5, "'steps' of the state"),
        ("norms", None, "'norms' of the state must be a dict by layer, got None"),
        ("norms", [1.0], "'norms' of the state must be a dict by layer, got a list"),
        ("norms", {"0": "large"}, "norm of layer '0' in the state must be .* got 'large'"),
        ("layers", [], "'layers' of the state must be a dict by layer, got a list"),
        ("layers", None, "'layers' of the state must be a dict by layer, got None"),
    ],
)
def test_entries_of_another_type_are_refused(entry: str, value: Any, complaint: str) -> None:
    _, attachment = started("farnia")
    before = copy.deepcopy(attachment.state_dict())
    with pytest.raises(TypeError, match=complaint):
        attachment.load_state_dict({**before, entry: value})
    assert_same(attachment.state_dict(), before)


# States of layers

DAMAGES: dict[str, Callable[[Any], Any]] = {
    "text": lambda state: "damaged",
    "object": lambda state: object(),
    "complex": lambda state: _changed(state, lambda tensor: tensor * 1j),
    "flat": lambda state: _changed(state, lambda tensor: tensor.flatten()[None, None]),
    "longer": lambda state: _changed(state, lambda tensor: torch.cat([tensor, tensor], -1)),
    "words": lambda state: _changed(state, lambda tensor: "vector"),
}


def _changed(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _changed(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_changed(one, change) for one in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _has_tensors(value: Any) -> bool:
    return any(isinstance(one, torch.Tensor) for one in flat(value).values())


@pytest.mark.parametrize("name", methods.available())
def test_a_damaged_layer_changes_nothing(name: str) -> None:
    model, attachment = started(name)
    before = copy.deepcopy(attachment.state_dict())
    weights = copy.deepcopy(model.state_dict())
    if not before["layers"]:
        pytest.skip("it remembers nothing of its layers")
    last = list(before["layers"])[-1]  # so that others have been loaded already
    for damage, make in DAMAGES.items():
        if damage not in ("text", "object") and not _has_tensors(before["layers"][last]):
            continue
        state = copy.deepcopy(before)
        state["layers"][last] = make(state["layers"][last])
        with pytest.raises(ValueError, match="state"):
            attachment.load_state_dict(state)
        assert_same(attachment.state_dict(), before)
        assert_same(dict(model.state_dict()), dict(weights))
    attachment.load_state_dict(before)
    assert_same(attachment.state_dict(), before)


@pytest.mark.parametrize(
    "name", ["spectral_clip", "fast_clip", "farnia", "miyato", "virmaux", "cisse"]
)
@pytest.mark.parametrize("fresh", [True, False])
def test_a_state_of_a_wider_network_is_refused(name: str, fresh: bool) -> None:
    _, other = started(name, width=6)
    model, attachment = started(name, steps=0 if fresh else 2)
    before = copy.deepcopy(attachment.state_dict())
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="shape"):
        attachment.load_state_dict(other.state_dict())
    assert_same(attachment.state_dict(), before)
    assert_same(dict(model.state_dict()), dict(weights))


@over_methods
def test_states_that_do_not_fit_are_refused(tried: Tried) -> None:
    model = small_network()
    attachment = attached(tried, model, sgd(model))
    saved = attachment.state_dict()
    with pytest.raises(ValueError, match="This state is of 'Other'"):
        attachment.load_state_dict({**saved, "method": "Other"})
    with pytest.raises(ValueError, match=r"speaks of the layers \['there'\]"):
        attachment.load_state_dict({**saved, "layers": {"there": []}})
