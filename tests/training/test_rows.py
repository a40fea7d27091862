"""Matrices inside other layers, held while they train: each by itself, in its own rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn

from spectralclip import attach
from spectralclip._training.momentum import momentum_of, whole_and_part
from spectralclip.methods import Farnia, SpectralClip

BOUND = 0.8


class Recurrent(nn.Module):
    """Sequences to classes; its matrices are larger than what one look shows of them."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.lstm = nn.LSTM(6, 40, batch_first=True)
            self.gru, self.out = nn.GRU(40, 30, batch_first=True), nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.lstm(x)[0])[0][:, -1])  # type: ignore[no-any-return]


with seeded(1):
    X, Y = torch.randn(16, 5, 6), torch.randint(0, 3, (16,))


def parts(model: Recurrent) -> list[Tensor]:
    """The matrices as the tests know them, apart from the library."""
    lstm = [
        part for p in (model.lstm.weight_ih_l0, model.lstm.weight_hh_l0) for part in p.split(40)
    ]
    gru = [part for p in (model.gru.weight_ih_l0, model.gru.weight_hh_l0) for part in p.split(30)]
    return [part.detach() for part in (*lstm, *gru, model.out.weight)]


def largest(model: Recurrent) -> float:
    return max(float(torch.linalg.matrix_norm(part.double(), 2)) for part in parts(model))


def step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    (8 * nn.functional.cross_entropy(model(X), Y)).backward()
    optimizer.step()


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}
quietly = pytest.mark.filterwarnings("ignore:Within these bounds")


@quietly
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_true_norms_are_held_at_every_step(name: str) -> None:
    free, model = Recurrent(), Recurrent()
    loose = OPTIMIZERS[name](free)
    optimizer = OPTIMIZERS[name](model)
    attachment = attach(model, optimizer, X, max_norm=BOUND)
    keys = list(model.state_dict())
    assert len(attachment.layers) == 15 and attachment.uncovered == {}
    for _ in range(40):
        step(free, loose)
        step(model, optimizer)
        assert largest(model) <= 1.02 * BOUND
    assert largest(free) > 1.3 * BOUND
    assert list(model.state_dict()) == keys
    pressures = attachment.pressures()
    assert max(pressures.values()) > 0 and len(set(pressures.values())) > 4
    attachment.finalize(certify=True)
    assert largest(model) <= BOUND


@quietly
def test_rows_of_one_parameter_are_held_within_bounds_of_their_own() -> None:
    model = Recurrent()
    optimizer = OPTIMIZERS["adam"](model)
    names = [f"lstm.weight_hh_l0[{gate}]" for gate in ("forget", "cell", "output")]
    bounds = dict(zip(names, (0.3, 9.0, 0.5), strict=True))
    attachment = attach(model, optimizer, X, max_norm=bounds)
    for _ in range(10):
        step(model, optimizer)
    norms = [torch.linalg.matrix_norm(p, 2) for p in model.lstm.weight_hh_l0.detach().split(40)]
    assert norms[1] <= 1.02 * 0.3 and norms[3] <= 1.02 * 0.5
    assert min(norms[0], norms[2]) > 0.8
    pressures = attachment.pressures()
    assert pressures[names[0]] > 0 and pressures[names[1]] == 0 and pressures[names[2]] > 0


@quietly
def test_momentum_is_projected_in_the_rows_that_moved_and_nowhere_else() -> None:
    model = Recurrent()
    optimizer = OPTIMIZERS["sgd"](model)
    step(model, optimizer)
    attach(model, optimizer, X, max_norm={"lstm.weight_hh_l0[cell]": 0.2})
    alone = copy.deepcopy((model, optimizer.state_dict()))
    free = alone[0]
    other = OPTIMIZERS["sgd"](free)
    other.load_state_dict(alone[1])
    step(model, optimizer)
    step(free, other)
    own = optimizer.state[model.lstm.weight_hh_l0]["momentum_buffer"]
    without = other.state[free.lstm.weight_hh_l0]["momentum_buffer"]
    changed = (own != without).any(1)
    assert changed[80:120].any() and not changed[:80].any() and not changed[120:].any()


@pytest.mark.parametrize("columns", [False, True])
def test_a_view_leads_back_to_its_part_of_a_parameter(columns: bool) -> None:
    weight = nn.Parameter(torch.arange(24.0).reshape(6, 4))

    def part_of(tensor: Tensor) -> Tensor:
        return tensor[:, 1:3].T if columns else tensor[2:5]

    with torch.no_grad():
        whole, part = whole_and_part(part_of(weight))
    assert whole is weight and part is not None
    assert whole_and_part(weight) == (weight, None)
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    momentum = momentum_of(optimizer, weight)
    assert momentum is not None and momentum.within(None) is momentum
    own = momentum.within(part)
    own.buffer.zero_()
    assert torch.equal(part_of(momentum.buffer), torch.zeros_like(own.buffer))
    assert int((momentum.buffer == 0).sum()) == own.buffer.numel()
    assert own.squares is not None and momentum.squares is not None
    assert torch.equal(own.squares, part_of(momentum.squares))
    with pytest.raises(ValueError, match="strides"):
        part.of(torch.zeros(4, 6).T)


@quietly
def test_a_run_goes_on_exactly_from_a_checkpoint() -> None:
    model = Recurrent()
    optimizer = OPTIMIZERS["adam"](model)
    attachment = attach(model, optimizer, X, max_norm=BOUND)
    for _ in range(5):
        step(model, optimizer)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), attachment.state_dict()))
    for _ in range(5):
        step(model, optimizer)
    again = Recurrent()
    again.load_state_dict(saved[0])
    other = OPTIMIZERS["adam"](again)
    other.load_state_dict(saved[1])
    attach(again, other, X, max_norm=BOUND).load_state_dict(saved[2])
    for _ in range(5):
        step(again, other)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@quietly
def test_frozen_weights_are_left_alone_and_named() -> None:
    model = Recurrent()
    model.lstm.weight_hh_l0.requires_grad_(False)
    before = model.lstm.weight_hh_l0.clone()
    attachment = attach(model, OPTIMIZERS["adam"](model), X, max_norm=0.1)
    frozen = [f"lstm.weight_hh_l0[{gate}]" for gate in ("input", "forget", "cell", "output")]
    assert attachment.uncovered == dict.fromkeys(frozen, "frozen")
    step(model, attachment.optimizers.given[0])
    assert torch.equal(model.lstm.weight_hh_l0, before)


@quietly
def test_tied_rows_are_held_at_the_smaller_bound() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with seeded(0):
                self.one, self.other = nn.RNNCell(6, 6), nn.RNNCell(6, 6)
            self.other.weight_hh = self.one.weight_hh

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x[:, 1], self.one(x[:, 0]))[:, :3]  # type: ignore[no-any-return]

    model = Tied()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    attach(model, optimizer, X, max_norm={"one.weight_hh": 0.4, "other.weight_hh": 0.9})
    for _ in range(10):
        step(model, optimizer)
    assert torch.linalg.matrix_norm(model.one.weight_hh.detach(), 2) <= 1.02 * 0.4


@quietly
def test_who_attaches_twice_is_warned() -> None:
    model = Recurrent()
    optimizer = OPTIMIZERS["adam"](model)
    first = attach(model, optimizer, X, max_norm=BOUND)
    with pytest.warns(UserWarning, match=r"'lstm.weight_ih_l0\[input\]' is held by"):
        attach(model, optimizer, X, max_norm=BOUND)
    first.remove()


def test_methods_that_scale_whole_parameters_leave_rows_alone() -> None:
    model = Recurrent()
    attachment = attach(model, OPTIMIZERS["adam"](model), X, method=Farnia(), max_norm=BOUND)
    assert list(attachment.layers) == ["out"]


@quietly
def test_half_precision() -> None:
    model = Recurrent().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    attach(model, optimizer, X.bfloat16(), method=SpectralClip(headroom=0.02), max_norm=BOUND)
    for _ in range(5):
        optimizer.zero_grad()
        (8 * nn.functional.cross_entropy(model(X.bfloat16()), Y)).backward()
        optimizer.step()
        assert largest(model) <= 1.02 * BOUND


@quietly
def test_projections_of_a_transformer_are_held() -> None:
    with seeded(0):
        model = nn.Sequential(
            nn.TransformerEncoderLayer(6, 2, 12, batch_first=True), nn.Flatten(), nn.Linear(30, 3)
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    attachment = attach(model, optimizer, X, max_norm=BOUND)
    assert "0.self_attn.in_proj_weight[k]" in attachment.layers
    for _ in range(10):
        step(model, optimizer)
        attention: Any = model[0].self_attn
        for part in (*attention.in_proj_weight.detach().split(6), attention.out_proj.weight):
            assert torch.linalg.matrix_norm(part.detach(), 2) <= 1.02 * BOUND
