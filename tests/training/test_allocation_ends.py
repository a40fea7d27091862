"""Networks under one bound: states that are stored, ends, and proofs."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from allocation_cases import EXAMPLE, Network, dense, grow, product
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import Attachment, NormWarning, attach, lipschitz_bounds
from spectralclip._lipschitz import NetworkBound
from spectralclip._training import Method
from spectralclip._training.allocation import Allocation
from spectralclip.methods import Parametrize, SpectralClip


@pytest.mark.parametrize("at", [99, 130])  # in the middle of a sample of pressures, and after one
def test_a_run_that_goes_on_is_the_same_run(at: int) -> None:
    def run(
        model: nn.Module, optimizer: Any, attachment: Attachment, first: int, last: int
    ) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            optimizer.zero_grad()
            (-model(torch.randn(8, 2, 6, 6)).square().mean()).backward()
            optimizer.step()

    def made() -> tuple[nn.Module, Any, Attachment]:
        torch.manual_seed(0)
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        return model, optimizer, attach(model, optimizer, EXAMPLE, max_lipschitz=2.0)

    model, optimizer, attachment = made()
    run(model, optimizer, attachment, 0, at)
    stored = copy.deepcopy([o.state_dict() for o in (model, optimizer, attachment)])
    run(model, optimizer, attachment, at, 210)
    again, its_optimizer, its_attachment = made()
    for owner, state in zip((again, its_optimizer, its_attachment), stored, strict=True):
        owner.load_state_dict(state)
    run(again, its_optimizer, its_attachment, at, 210)
    assert its_attachment.max_norms == attachment.max_norms
    assert its_attachment.pressures() == attachment.pressures()
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_another_bound_gives_proportions_and_not_bounds() -> None:
    model, example = dense(8, 8, 8, 3), torch.zeros(1, 8)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    with attach(model, optimizer, example, max_lipschitz=50.0) as attachment:
        grow(model, optimizer, 110)
        state = copy.deepcopy(attachment.state_dict())
    assert product(model) > 20
    attachment = attach(model, optimizer, example, max_lipschitz=1.0)
    attachment.load_state_dict(state)
    assert math.prod(attachment.max_norms.values()) == pytest.approx(1.0, rel=0.05)
    grow(model, optimizer, 30)
    assert product(model) <= 1.02


def test_a_state_of_other_frozen_layers_gives_proportions_and_not_bounds() -> None:
    model, example = dense(8, 8, 3), torch.zeros(1, 8)
    model[0].weight.data.mul_(0.01)
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with attach(model, optimizer, example, max_lipschitz=1.0) as attachment:
        state = attachment.state_dict()
        assert attachment.max_norms["2"] > 20
    model[0].weight.requires_grad_(True)
    attachment = attach(model, optimizer, example, max_lipschitz=1.0)
    attachment.load_state_dict(state)
    assert math.prod(attachment.max_norms.values()) == pytest.approx(1.0, rel=0.05)


def test_a_proof_may_be_asked_for_without_chance() -> None:
    convolution = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    model, example = nn.Sequential(convolution, nn.ReLU()), torch.zeros(1, 4, 12, 12)
    attachment = attach(model, None, example, max_lipschitz=1.0)
    attachment.finalize(certify="deterministic")
    assert attachment.network_bound is not None
    assert attachment.network_bound.failure == 0 and attachment.network_bound.upper <= 1


class Switch(nn.Module):
    """A network of another constant far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dense(x)
        return 100 * y if x.abs().max() > 1 else y


def test_a_network_that_decides_by_its_input_is_warned_of_and_not_proved() -> None:
    model = Switch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(NormWarning, match=r"way through 'the model itself' depends on the input"):
        attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=1.0)
    with pytest.raises(ValueError, match=r"cannot be proved: the way through"):
        attachment.finalize(certify=True)
    assert not attachment.is_removed
    attachment.finalize()
    assert dense_norm(model.dense, (8,)) <= 1.0


@pytest.mark.filterwarnings("ignore:.*are not held")
@pytest.mark.parametrize("method", [SpectralClip(), Parametrize()])
def test_an_end_that_fails_beforehand_leaves_the_network_held(method: Method) -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope, self.dense = nn.PReLU(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.slope(x) + self.dense(x)

    torch.manual_seed(0)
    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer, torch.zeros(1, 8), method=method, max_lipschitz=2.0)
    with torch.no_grad():
        model.slope.weight.fill_(10.0)
    with pytest.raises(ValueError, match=r"would be 10, .*nothing holds 'slope\.weight'"):
        attachment.finalize(certify=True)
    assert not attachment.is_removed
    with torch.no_grad():
        model.slope.weight.fill_(0.1)
    model.slope.requires_grad_(False)
    grow(model, optimizer, 30)
    # The rules count a slope as at least 1.
    assert dense_norm(model.dense, (8,)) <= 1.02
    attachment.finalize(certify=True)
    assert attachment.is_removed and lipschitz_bounds(model, torch.zeros(1, 8)).upper <= 2.0


def test_a_method_that_has_ended_is_removed_whatever_becomes_of_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = dense(8, 4)
    attachment = attach(model, None, torch.zeros(1, 8), method=Parametrize(), max_lipschitz=2.0)
    monkeypatch.setattr(Allocation, "_proof", lambda *_, **__: NetworkBound(0.0, 9.0, 0.0, 9.0))
    with pytest.raises(ValueError, match="is not proved"):
        attachment.finalize(certify=True)
    assert attachment.is_removed


def test_a_wrong_wish_at_the_end_leaves_the_network_held() -> None:
    model, example = dense(8, 8, 3), torch.zeros(1, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    method = Parametrize()
    attachment = attach(model, optimizer, example, max_lipschitz=1.0, method=method)
    with pytest.raises(ValueError, match='certify must be False, True or "deterministic"'):
        attachment.finalize(certify="yes")  # type: ignore[arg-type]
    grow(model, optimizer, 20)
    assert product(model) <= 1.02
