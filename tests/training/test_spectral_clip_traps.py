"""What once went wrong while training: leaps of the weights, zero kernels, lost neighbours."""

from __future__ import annotations

import copy
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (lambda: nn.Conv1d(4, 4, 31, padding=15, groups=4), (4, 100)),
        (lambda: nn.Conv1d(1, 8, 80, stride=4), (1, 400)),
        (lambda: nn.Conv2d(4, 4, 7, padding=3, groups=4), (4, 12, 12)),
        (lambda: nn.Conv2d(4, 4, 5, padding=2), (4, 14, 14)),
    ],
    ids=["31 taps", "80 taps, stride 4", "7x7", "5x5"],
)
def test_kernels_of_many_taps_are_held_from_the_first_step(
    layer: Callable[[], nn.Module], in_shape: tuple[int, ...]
) -> None:
    """Their symbols have a peak for each tap: few frequencies would miss most of them."""
    model = nn.Sequential(layer())
    with torch.no_grad():
        model[0].weight.mul_(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    attach(model, optimizer, torch.zeros(1, *in_shape))
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, *in_shape)).square().mean().neg().backward()
        optimizer.step()
        assert dense_norm(model[0], in_shape) <= 1.01


class AtTwoSizes(nn.Module):
    """The same convolution on a window, where it is a matrix, and on an image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[..., :3, :3]).sum() + self.conv(x).sum()


def test_a_layer_is_held_at_all_of_its_sizes_in_any_order() -> None:
    model = AtTwoSizes()
    with torch.no_grad():
        model.conv.weight.mul_(5)
    attachment = attach(model, None, torch.zeros(1, 4, 8, 8))
    attachment.step()
    assert dense_norm(model.conv, (4, 8, 8)) <= 1.01


@pytest.mark.parametrize("without", [1e8, 3e12, 1e16])
@pytest.mark.parametrize("padding", ["zeros", "reflect", None])
def test_a_bound_that_was_none_at_first_is_taken_up_at_once(
    without: float, padding: str | None
) -> None:
    """In units of such a bound the squares of norms are too small for single precision."""
    dense = padding is None
    layer = nn.Linear(40, 40) if dense else nn.Conv2d(4, 4, 3, padding=1, padding_mode=padding)
    in_shape = (40,) if dense else (4, 8, 8)
    with torch.no_grad():
        layer.weight.mul_(4)
    attachment = attach(
        nn.Sequential(layer),
        None,
        torch.zeros(1, *in_shape),
        schedule=lambda step: without if step < 2 else 1.0,
    )
    for _ in range(3):
        attachment.step()
    assert 0.93 <= dense_norm(layer, in_shape) <= 1.01


def test_growth_far_below_the_bound_does_not_lower_the_target() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))
    along = 0.0004 * torch.randn(4, 4, 3, 3)
    nn.init.zeros_(model[0].weight)
    attachment = attach(model, None, torch.zeros(1, 4, 8, 8))
    for _ in range(250):
        with torch.no_grad():
            model[0].weight.add_(along)
        attachment.step()
    assert 0.985 <= dense_norm(model[0], (4, 8, 8)) <= 1.0


@pytest.mark.parametrize("frozen", [1, 4])
def test_one_of_several_equal_batch_norms_may_be_frozen_and_freed(frozen: int) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = methods.SpectralClip(compose="conv_bn")
    attach(model, optimizer, torch.zeros(1, 4, 6, 6), method=method)
    for step in range(9):
        if step == 3:
            model[frozen].requires_grad_(False)
            before = model[frozen].weight.clone()
        if step == 6:
            assert torch.equal(model[frozen].weight, before)
            model[frozen].requires_grad_(True)
        optimizer.zero_grad()
        model(torch.randn(4, 4, 6, 6)).square().mean().neg().backward()
        optimizer.step()
        model.eval()
        assert max(dense_norm(model[n : n + 2], (4, 6, 6)) for n in (0, 3)) <= 1.02
        model.train()


@pytest.mark.parametrize("name", ["orthogonal", "spectral_norm"])
def test_what_does_not_follow_the_scale_of_its_parameters_is_refused(name: str) -> None:
    model = nn.Sequential(getattr(nn.utils.parametrizations, name)(nn.Linear(8, 8)), nn.ReLU())
    with pytest.raises(ValueError, match="'0' cannot be held: its norm does not follow the scale"):
        attach(model, None, torch.zeros(1, 8))
    model.append(nn.Linear(8, 8))
    others = attach(
        model, None, torch.zeros(1, 8), max_norm=lambda name, _: None if name == "0" else 1.0
    )
    assert list(others.layers) == ["2"]


def test_a_check_teaches_what_was_never_followed() -> None:
    """Of a matrix that is zero there, power steps lose all that vectors have of a direction."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    with torch.no_grad():
        model[0].weight.zero_()[range(32), range(32)] = 0.9
    attachment = attach(model, None, torch.zeros(1, 64))
    norms = []
    for step in range(40):
        with torch.no_grad():
            model[0].weight[50, 50] += 0.1 * (step >= 10)
        attachment.step()
        norms.append(dense_norm(model[0], (64,)))
    above = [n for n, norm in enumerate(norms) if norm > 1.01]
    assert above == list(range(above[0], above[-1] + 1))  # once, until the check
    assert above[-1] < 30


@pytest.mark.parametrize("size", [1e-8, 1e-10, 1e-13, 1e-16, 1e-20])
def test_tiny_weights_stay_as_they_are_and_are_held_when_they_grow(size: float) -> None:
    model = nn.Sequential(
        nn.Linear(40, 40), nn.Unflatten(1, (4, 2, 5)), nn.Conv2d(4, 4, 3, padding=1)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(size)
    attachment = attach(model, None, torch.zeros(1, 40))
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        attachment.step()
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 / size)
    attachment.step()
    assert dense_norm(model[0], (40,)) <= 1.01
    assert dense_norm(model[2], (4, 2, 5)) <= 1.01
