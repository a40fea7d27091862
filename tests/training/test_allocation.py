"""One number for the whole network: `attach(..., max_lipschitz=...)`."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from allocation_cases import EXAMPLE, Network, dense, grow, product
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import Attachment, NormWarning, attach, lipschitz_bounds
from spectralclip._lipschitz import NetworkRules
from spectralclip._training import Method
from spectralclip.methods import FastClip, Gouk, Parametrize, SpectralClip


def trained(
    max_lipschitz: float,
    *,
    steps: int,
    method: Method | None = None,
    model: nn.Module | None = None,
    **settings: Any,
) -> tuple[nn.Module, Attachment, list[float]]:
    """A network trained to grow, and its bound by the rules with dense norms, as it went."""
    torch.manual_seed(0)
    model = model or Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    attachment = attach(
        model, optimizer, EXAMPLE, method=method, max_lipschitz=max_lipschitz, **settings
    )
    seen = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = -model(torch.randn(16, 2, 6, 6)).square().sum(1).sqrt().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 25 == 0:
            seen.append(network_norm(model, attachment))
    return model, attachment, seen


def network_norm(model: nn.Module, attachment: Attachment) -> float:
    layers = attachment.layers
    norms = {name: dense_norm(list(one.modules), one.in_shapes[0]) for name, one in layers.items()}
    return NetworkRules(model, EXAMPLE, layers).of(norms)


METHODS: list[Method] = [
    SpectralClip(),
    SpectralClip(compose="conv_bn"),
    Parametrize(),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: type(one).__name__)
def test_the_network_stays_within_its_bound(method: Method, max_lipschitz: float = 1.0) -> None:
    network = Network(norm=method.compose == "conv_bn")
    model, attachment, seen = trained(max_lipschitz, steps=125, method=method, model=network)
    assert max(seen) <= 1.02 * max_lipschitz
    assert seen[-1] >= 0.9 * max_lipschitz  # it presses, and nothing is given away
    attachment.finalize(certify=True)
    assert attachment.network_bound is not None
    assert attachment.network_bound.upper <= max_lipschitz
    assert lipschitz_bounds(model, EXAMPLE).upper <= max_lipschitz


@pytest.mark.parametrize(
    "method", [FastClip(), Gouk(), *METHODS], ids=lambda one: type(one).__name__
)
def test_the_bound_is_proved_at_the_end_whatever_the_method(method: Method) -> None:
    model, attachment, _ = trained(3.0, steps=10, method=method)
    attachment.finalize(certify=True)
    assert lipschitz_bounds(model, EXAMPLE).upper <= 3.0


def test_batch_norms_are_held_as_layers_of_their_own() -> None:
    model, attachment, _ = trained(5.0, steps=30, model=Network(norm=True))
    assert "norm" in attachment.layers
    attachment.finalize(certify=True)
    assert lipschitz_bounds(model, EXAMPLE).upper <= 5.0


def test_bounds_are_equal_at_first_or_as_given() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    example = torch.zeros(1, 4)
    with attach(model, None, example, max_lipschitz=16.0) as attachment:
        assert attachment.max_norms == pytest.approx({"0": 4.0, "2": 4.0})
        assert attachment.max_lipschitz == 16.0
    with attach(
        model, None, example, max_lipschitz=16.0, proportions={"0": 1, "2": 4}
    ) as attachment:
        assert attachment.max_norms == pytest.approx({"0": 2.0, "2": 8.0})


def test_a_layer_that_is_left_out_counts_at_its_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.warns(NormWarning, match=r"'2\.weight' change as the network trains, and are not"):
        attachment = attach(
            model, None, torch.zeros(1, 4), max_lipschitz=16.0, proportions={"0": 1.0}
        )
    norm = dense_norm(model[2], (4,))
    assert attachment.max_norms == pytest.approx({"0": 16 / norm}, rel=1e-3)


def test_frozen_layers_count_at_their_norms_and_get_a_part_when_they_are_freed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attachment = attach(model, optimizer, torch.zeros(1, 4), max_lipschitz=16.0)
    own = dense_norm(model[2], (4,))
    assert attachment.max_norms == pytest.approx({"0": 16 / own}, rel=1e-3)
    model[2].requires_grad_(True)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert math.prod(attachment.max_norms.values()) == pytest.approx(16.0, rel=1e-3)


def test_bounds_move_to_where_they_are_needed() -> None:
    """Of two layers, one is held back by weight decay and gives its part to the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False))
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[2].parameters(), "lr": 0.0},
    ]
    with torch.no_grad():
        model[2].weight.mul_(0.5 / dense_norm(model[2], (6,)))
    optimizer = torch.optim.SGD(groups)
    attachment = attach(model, optimizer, torch.zeros(1, 6), max_lipschitz=4.0)
    for _ in range(401):
        optimizer.zero_grad()
        (-model(torch.randn(16, 6)).norm(dim=1).mean()).backward()
        optimizer.step()
    assert attachment.max_norms["0"] > 2.3 > 1.7 > attachment.max_norms["2"]
    assert dense_norm(model[0], (6,)) * dense_norm(model[2], (6,)) <= 4.0 * 1.02


@pytest.mark.filterwarnings("ignore:.*are not held")
def test_statistics_are_followed_while_they_settle() -> None:
    """From a variance of 1 to 1e-4: a factor of a hundred, within the first steps."""
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8, bias=False), nn.Linear(8, 3, bias=False)
    model = nn.Sequential(first, nn.BatchNorm1d(8, affine=False), nn.ReLU(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=5.0)
    for step in range(1, 66):
        optimizer.zero_grad()
        model(0.01 * torch.randn(64, 8)).square().mean().backward()
        optimizer.step()
        variance = model[1].running_var
        if step in (2, 3, 33, 65):  # one step after it was looked at
            gain = float((variance + 1e-5).rsqrt().max())  # type: ignore[operator]
            norm = dense_norm(first, (8,)) * gain * dense_norm(last, (8,))
            assert norm <= 5.0 * 1.25, step
    attachment.remove()


def test_a_decoder_with_the_weight_of_the_encoder_is_held() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(8, 5, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.relu(self.encoder(x)), self.encoder.weight.t())

    torch.manual_seed(0)
    model, example = Tied(), torch.zeros(1, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attachment = attach(model, optimizer, example, max_lipschitz=4.0)
    grow(model, optimizer, 60)
    assert 3.5 <= dense_norm(model.encoder, (8,)) ** 2 <= 4.0 * 1.02
    attachment.finalize(certify=True)
    assert lipschitz_bounds(model, example).upper <= 4.0


def test_a_schedule_does_not_pass_for_layers_that_need_less() -> None:
    """A layer that is held at half of its bound is at all of what it may be."""
    torch.manual_seed(0)
    model = dense(8, 8, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(
        *(model, optimizer, torch.zeros(1, 8)),
        max_lipschitz=1.0,
        schedule=lambda step: 0.5 if step <= 1000 else 1.0,
    )
    grow(model, optimizer, 1000)
    assert 0.9 * 0.5**3 <= product(model) <= 1.02 * 0.5**3
    grow(model, optimizer, 50)
    assert 0.5 <= product(model) <= 1.02


def test_nothing_is_held_while_all_is_frozen() -> None:
    model, example = dense(8, 8, 3).requires_grad_(False), torch.zeros(1, 8)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attachment = attach(model, optimizer, example, max_lipschitz=0.5)
    optimizer.step()
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    model.requires_grad_(True)
    grow(model, optimizer, 20)
    assert product(model) <= 0.5 * 1.02
    model[0].weight.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    grow(model, optimizer, 2)
    assert product(model) <= 0.5 * 1.02
    attachment.remove()


def test_a_factor_that_is_called_bias_is_looked_at_again() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + self.bias)

    first, _, last = dense(8, 8, 3)
    model = nn.Sequential(first, nn.ReLU(), Gain(), last)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=1.0)
    grow(model, optimizer, 100)
    gain = float((1 + model[2].bias.detach()).abs().max())  # type: ignore[operator,union-attr]
    assert gain > 1.5
    assert gain * math.prod(attachment.max_norms.values()) <= 1.03


@pytest.mark.filterwarnings("ignore:.*are not held")
def test_weights_that_are_not_finite_are_warned_of_and_end_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=1.0)
    grow(model, optimizer, 10)
    good = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.warns(NormWarning, match="NaN or infinite"):
        grow(model, optimizer, 100)
    model.load_state_dict(good)
    grow(model, optimizer, 100)
    assert dense_norm(model[0], (8,)) * dense_norm(model[2], (8,)) <= 1.02
    assert attachment.steps == 210
