"""What once went wrong while training: leaps of the weights, zero kernels, lost neighbours."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import NormWarning, attach, methods


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))


def largest(model: nn.Sequential) -> float:
    return max(dense_norm(model[0], (4, 8, 8)), dense_norm(model[2], (8, 8, 8)))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_a_leap_of_the_learning_rate_is_not_slept_through() -> None:
    model, x = small_network(), torch.randn(8, 4, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    attach(model, optimizer, x[:1], method=methods.SpectralClip())
    for step in range(26):
        optimizer.param_groups[0]["lr"] = 2.0 if step >= 20 else 1e-3
        optimizer.zero_grad()
        F.cross_entropy(10 * model(x).flatten(1), torch.arange(8)).backward()
        optimizer.step()
        if step >= 20:
            assert largest(model) <= 1.01


def test_weights_that_are_replaced_are_seen_at_once() -> None:
    model = small_network()
    attachment = attach(model, None, torch.zeros(1, 4, 8, 8), method=methods.SpectralClip())
    for count in range(12, 16):  # whatever the number of the step
        for _ in range(count):
            attachment.step()
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape))
        attachment.step()
        assert largest(model) <= 1.01


@pytest.mark.slow
def test_a_kernel_of_zeros_is_followed_once_it_is_none() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8))
    model[0].weight.data[0] = 0
    attachment = attach(model, None, torch.zeros(1, 8, 10, 10), method=methods.SpectralClip())
    for _ in range(40):
        model[0].weight.data[0] += 0.05
        attachment.step()
        assert dense_norm(model[0], (8, 10, 10)) <= 1.01
    assert dense_norm(model[0], (8, 10, 10)) > 0.8


def test_a_layer_of_zeros_is_no_trouble() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1))
    nn.init.zeros_(model[0].weight)
    attachment = attach(model, None, torch.zeros(1, 8, 12, 12), method=methods.SpectralClip())
    for _ in range(5):
        attachment.step()
    assert attachment.norms()["0"] == 0
    assert not model[0].weight.any()


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


def test_a_lost_layer_does_not_take_those_of_its_shape_with_it() -> None:
    model, x = Parallel(), torch.randn(8, 4, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attach(model, optimizer, x[:1], method=methods.SpectralClip())

    def step() -> None:
        optimizer.zero_grad()
        (-model.b(x).square().mean()).backward()
        optimizer.step()

    for _ in range(10):
        step()
    model.a.weight.data[0, 0, 0, 0] = torch.nan
    with pytest.warns(NormWarning, match="'a'"):
        step()
    for _ in range(30):
        step()
        assert dense_norm(model.b, (4, 8, 8)) <= 1.01


def test_an_optimizer_of_another_model_is_refused() -> None:
    other = torch.optim.SGD(small_network().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no parameter of the model"):
        attach(small_network(), other, torch.zeros(1, 4, 8, 8), method=methods.SpectralClip())


@pytest.mark.parametrize("bounds", [{"0": 0.5, "2": 1.0}, {"0": 1.0, "2": 0.5}])
def test_the_tighter_bound_holds_for_a_shared_weight(bounds: dict[str, float]) -> None:
    first, second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    attachment = attach(
        model, None, torch.zeros(1, 4, 8, 8), method=methods.SpectralClip(), max_norm=bounds
    )
    drift = 0.02 * torch.randn(first.weight.shape)
    for _ in range(20):
        first.weight.data += drift
        attachment.step()
        assert dense_norm(first, (4, 8, 8)) <= 0.5 * 1.01


def test_a_state_of_the_beginning_begins_anew() -> None:
    model = small_network()
    attachment = attach(
        model, None, torch.zeros(1, 4, 8, 8), method=methods.SpectralClip(), max_norm=0.5
    )
    weights, state = copy.deepcopy(model.state_dict()), attachment.state_dict()
    runs = []
    for _ in range(2):
        model.load_state_dict(weights)
        attachment.load_state_dict(state)
        for _ in range(5):
            model[0].weight.data *= 1.1
            attachment.step()
        runs.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in weights)
