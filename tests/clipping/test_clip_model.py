"""`clip_model_`: every layer within its bound, or the model as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from oracle import dense_norm
from spectralclip import FoundLayer, clip_model_


def made(make: Any) -> Any:
    with seeded(0):
        return make()


def small_network() -> nn.Sequential:
    return made(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
            nn.Flatten(),
            nn.Linear(4 * 6 * 6, 5),
        )
    )


INPUT = torch.zeros(2, 1, 6, 6)


def test_bounds_every_layer() -> None:
    model = small_network()
    results = clip_model_(model, INPUT, 0.3)
    assert list(results) == ["0+1", "3", "5"]
    assert dense_norm([model[0], model[1]], (1, 6, 6)) <= 0.3003
    assert dense_norm(model[3], (4, 6, 6)) <= 0.3003
    assert dense_norm(model[5], (144,)) <= 0.3003
    assert all(result.converged for result in results.values())


def test_bounds_by_name() -> None:
    model = small_network()
    dense = model[5].weight.clone()
    results = clip_model_(model, INPUT, {"3": 0.2})
    assert list(results) == ["3"]
    assert dense_norm(model[3], (4, 6, 6)) == pytest.approx(0.2, rel=5e-3)
    assert torch.equal(model[5].weight, dense)
    with pytest.raises(ValueError, match=r"max_norm names \['0'\], which are not among"):
        clip_model_(model, INPUT, {"0": 0.2})


def test_bounds_by_a_function() -> None:
    model = small_network()

    def only_dense(name: str, layer: FoundLayer) -> float | None:
        return 0.1 if isinstance(layer.modules[0], nn.Linear) else None

    assert list(clip_model_(model, INPUT, only_dense)) == ["5"]
    assert dense_norm(model[5], (144,)) <= 0.1001


class TwoSizes(nn.Module):
    """One convolution, used at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        z: Tensor = self.conv(y[..., ::2, ::2])
        return z


def test_the_bound_holds_at_each_size() -> None:
    model = made(TwoSizes)
    bound = 0.5 * dense_norm(model.conv, (2, 4, 4))
    result = clip_model_(model, torch.zeros(1, 2, 8, 8), bound)["conv"]
    for side in (4, 8):
        assert dense_norm(model.conv, (2, side, side)) <= 1.001 * bound
    assert result.norm_after <= 1.001 * bound


class Tied(nn.Module):
    """A dense layer and a convolution that share a weight, and have different norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 3, 2, bias=False)
        self.second = nn.Conv1d(3, 3, 2, bias=False, padding=1, padding_mode="replicate")
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y


def test_the_bound_holds_for_each_layer_that_shares_a_weight() -> None:
    model = made(Tied)
    bound = 0.5 * dense_norm(model.first, (3, 6))
    clip_model_(model, torch.zeros(1, 3, 6), bound)
    assert model.first.weight is model.second.weight
    assert dense_norm(model.first, (3, 6)) <= 1.001 * bound
    assert dense_norm(model.second, (3, 5)) <= 1.001 * bound


def test_nothing_has_changed_when_a_layer_is_refused() -> None:
    model = made(
        lambda: nn.Sequential(nn.Linear(6, 6), parametrizations.orthogonal(nn.Linear(6, 6)))
    )
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="Layer '1' cannot be clipped, and the model is left"):
        clip_model_(model, torch.zeros(1, 6), 0.1)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    clip_model_(model, torch.zeros(1, 6), {"0": 0.1})
    assert dense_norm(model[0], (6,)) == pytest.approx(0.1, rel=1e-3)


def test_an_interruption_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import spectralclip._clipping.clip_model as clip_model

    model, real, calls = small_network(), clip_model.clip_, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr(clip_model, "clip_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        clip_model_(model, INPUT, 0.1)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_leaves_the_rest_of_the_model_as_it_was() -> None:
    model = small_network().train()
    statistics = copy.deepcopy(model[1].state_dict())
    state = torch.random.get_rng_state()
    clip_model_(model, INPUT, 0.1)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(statistics[key], value) for key, value in model[1].state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module._forward_hooks for module in model.modules())
