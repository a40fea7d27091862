"""What an audit leaves out, and the reasons that it gives."""

from __future__ import annotations

import math

import pytest
import torch
from audit_cases import norm
from torch import Tensor, nn

from spectralclip._audit import audit


def test_broken_layers_are_left_out_with_a_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    found = audit(model, torch.zeros(1, 4), lipschitz=False)
    assert [layer.name for layer in found.layers] == ["0", "3"]
    assert set(found.skipped) == {"1", "0+1", "2"}
    assert "NaN" in found.skipped["1"] and "not affine" in found.skipped["2"]
    assert set(found.uncertified) == {"1", "0+1"}
    with pytest.raises(KeyError, match="left out of the audit"):
        found["1"]
    with pytest.raises(KeyError, match="no layer 'nothing'"):
        found["nothing"]


class Called(nn.Module):
    """Modules that are no affine layers, and affine ones that are called in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3)
        self.rnn, self.both = nn.LSTM(3, 3), nn.Bilinear(3, 3, 3)
        self.functional, self.up = nn.Linear(3, 3), nn.ConvTranspose1d(1, 1, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.rnn(self.norm(x)[:, None])[0][:, 0]
        x = self.both(x, x)
        return self.up((x @ self.functional.weight)[:, None], output_size=[8])


def test_only_what_may_be_an_affine_layer_is_missed() -> None:
    found = audit(Called(), torch.zeros(4, 3), lipschitz=False)
    assert set(found.skipped) == {"norm", "unused", "both", "functional", "up"}
    assert set(found.uncertified) == {"functional", "up"}
    assert found.skipped["up"] == f"not certified: {found.uncertified['up']}"


class Odd(nn.Module):
    """A dense layer that is known by no type, and has too many inputs to be tried one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(1500, 1200) / 40)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


def test_layers_of_unknown_types() -> None:
    model = Odd()
    (layer,) = audit(model, torch.zeros(1, 1500), lipschitz=False).layers
    weight = model.matrix.detach().double()
    assert layer.kind == "Odd" and layer.geometry == "1500 -> 1200"
    assert layer.norm.kind == "probabilistic" and norm(weight) in layer.norm
    assert layer.reshaped_norm is None and not layer.frobenius_is_exact
    # 64 samples of an operator whose stable rank is in the hundreds
    assert layer.frobenius == pytest.approx(float(weight.norm()), rel=0.01)


def test_a_network_without_a_bound_is_left_out_with_a_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    found = audit(model, torch.zeros(1, 4))
    assert found.lipschitz is None and "NaN" in found.skipped["(the network)"]
    assert "network: not to be had." in str(found)
    assert "NaN" in found.uncertified["(the network)"]
    with pytest.raises(ValueError, match=r"has no bound on the network: .* holds NaN"):
        found.certified_radius(torch.zeros(1, 2))
    unasked = audit(model, torch.zeros(1, 4), lipschitz=False)
    assert "network: not asked for." in str(unasked)
    with pytest.raises(ValueError, match="lipschitz=True"):
        unasked.certified_radius(torch.zeros(1, 2))


class Reversed(nn.GRU):
    """With a forward of its own, of which nothing is known."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x.flip(1))  # type: ignore[return-value]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 3, batch_first=True), Reversed(3, 3, batch_first=True)
        self.norm, self.out = nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.gru(self.lstm(x)[0])[0]))


def test_unknown_recurrent_layers_are_listed_with_their_norms_and_explained() -> None:
    model = Recurrent()
    found = audit(model, torch.randn(2, 5, 4), lipschitz=False)
    assert "lstm" not in found.skipped and found["lstm.weight_hh_l0[forget]"].kind == "LSTM matrix"
    why = found.skipped["gru"]
    assert "a recurrent layer" in why and "not certified" not in why
    for weight in ("weight_ih_l0", "weight_hh_l0"):
        largest = torch.linalg.svdvals(getattr(model.gru, weight).detach())[0]
        assert f"{weight} " in why and f"of norm {float(largest):.4g}" in why


def test_a_row_of_a_matrix_inside_a_layer_counts_its_own_weights() -> None:
    model = Recurrent()
    found = audit(model, torch.randn(2, 5, 4), lipschitz=False)["lstm.weight_ih_l0[cell]"]
    matrix = model.lstm.weight_ih_l0[6:9].detach()
    assert norm(matrix.double()) in found.norm and found.norm.kind == "exact"
    assert (found.parameters, found.geometry, found.reshaped_norm) == (12, "4 -> 3", None)
    assert found.frobenius == pytest.approx(float(matrix.norm()), rel=1e-5)


def test_the_advice_on_a_layer_norm_can_be_followed_in_an_audit() -> None:
    why = audit(Recurrent(), torch.randn(2, 5, 4), lipschitz=False).skipped["norm"]
    assert "not affine" in why and "Leave it out" not in why
    assert "larger eps" in why and "batch norm in its place" in why
