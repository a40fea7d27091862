"""A network's bound as a function of the norms of its layers, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import find_layers, lipschitz_bounds
from spectralclip._lipschitz import NetworkRules, UnboundedNetworkError


class Residual(nn.Module):
    def __init__(self, features: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


class SideBySide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], dim=1)


class Thrice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.relu(self.layer(x))
        return x


class Pooled(nn.Module):
    """A mean over 4 x 4 pixels has the norm 1/4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(torch.relu(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


VECTOR, IMAGE = (
    torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),
    torch.zeros(2, 2, 4, 4),
)
CASES: list[tuple[Callable[[], nn.Module], Tensor, Callable[[float], float]]] = [
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), VECTOR, lambda b: b**2),
    # Two layers in a row are one operator for the bound of the network, and two that are held.
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), VECTOR, lambda b: b**2),
    (Residual, VECTOR, lambda b: 1 + b**2),
    (SideBySide, VECTOR, lambda b: math.hypot(b, b)),
    (Thrice, VECTOR, lambda b: b**3),
    (Pooled, IMAGE, lambda b: b**2 / 4),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU()), VECTOR, lambda b: 1.1289041451851549 * b),
    (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2)), IMAGE, lambda b: b),
]


@pytest.mark.parametrize(("make", "example", "closed"), CASES)
@pytest.mark.parametrize("norm", [0.3, 1.0, 2.5])
def test_the_bound_is_the_closed_form_of_the_norms(
    make: Callable[[], nn.Module], example: Tensor, closed: Callable[[float], float], norm: float
) -> None:
    torch.manual_seed(0)
    model = make()
    layers = find_layers(model, example, "none")
    found = NetworkRules(model, example, layers).of(dict.fromkeys(layers, norm))
    assert found == pytest.approx(closed(norm), rel=1e-6)


@pytest.mark.parametrize(("make", "example", "closed"), CASES)
@pytest.mark.parametrize("target", [1.5, 40.0, 1e6])
def test_the_scale_meets_the_bound(
    make: Callable[[], nn.Module], example: Tensor, closed: Callable[[float], float], target: float
) -> None:
    torch.manual_seed(0)
    model = make()
    layers = find_layers(model, example, "none")
    scale = NetworkRules(model, example, layers).scale_for(dict.fromkeys(layers, 1.0), target)
    assert closed(scale) <= target * (1 + 1e-7)
    assert closed(scale) == pytest.approx(target, rel=1e-6)


def test_proportions_are_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    rules = NetworkRules(model, VECTOR, find_layers(model, VECTOR))
    assert rules.scale_for({"0": 1.0, "2": 4.0}, 16.0) == pytest.approx(2.0, rel=1e-6)


def test_a_layer_that_is_left_out_counts_at_its_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    layers = find_layers(model, VECTOR)
    rules = NetworkRules(model, VECTOR, {"0": layers["0"]})
    assert rules.of({"0": 2.0}) == pytest.approx(2 * dense_norm(model[2], (4,)), rel=1e-3)


@pytest.mark.parametrize("compose", ["conv_bn", "none"])
def test_convolution_and_batch_norm_as_one_or_apart(compose: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1))
    layers = find_layers(model, IMAGE, compose)
    assert len(layers) == (2 if compose == "conv_bn" else 3)
    found = NetworkRules(model, IMAGE, layers).of(dict.fromkeys(layers, 2.0))
    assert found == pytest.approx(4.0 if compose == "conv_bn" else 8.0, rel=1e-9)


@pytest.mark.parametrize(("make", "example", "closed"), CASES)
def test_it_is_above_the_bound_of_the_network_itself(
    make: Callable[[], nn.Module], example: Tensor, closed: Callable[[float], float]
) -> None:
    """With the layers' own norms it may be no less than what is proved of the network."""
    torch.manual_seed(0)
    model = make()
    layers = find_layers(model, example, "none")
    norms = {
        name: dense_norm(layers[name].modules[0], layers[name].in_shapes[0]) for name in layers
    }
    proved = lipschitz_bounds(model, example, local=False, tol=1e-4).upper
    assert NetworkRules(model, example, layers).of(norms) >= proved * (1 - 1e-3)


# --- What cannot be -------------------------------------------------------------------------


def test_what_goes_around_the_layers_is_the_smallest_that_can_be_reached() -> None:
    torch.manual_seed(0)
    model = Residual()
    rules = NetworkRules(model, VECTOR, find_layers(model, VECTOR))
    with pytest.raises(ValueError, match=r"max_lipschitz=0\.9: .* its bound would be 1, by what"):
        rules.scale_for({"first": 1.0, "second": 1.0}, 0.9)


def test_layers_that_the_output_does_not_depend_on() -> None:
    class Idle(Residual):
        def forward(self, x: Tensor) -> Tensor:
            self.first(x)
            return torch.relu(x)

    model = Idle()
    rules = NetworkRules(model, VECTOR, find_layers(model, VECTOR))
    with pytest.raises(ValueError, match="No layer that is held lies between"):
        rules.scale_for({"first": 1.0}, 2.0)


def test_a_place_without_a_bound_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.forward = lambda x: model[0](x) * x  # type: ignore[method-assign]
    with pytest.raises(UnboundedNetworkError, match="mul: it multiplies values that depend"):
        NetworkRules(model, VECTOR, find_layers(model, VECTOR))


def test_a_composition_that_something_else_looks_into() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            made = self.dense(x)
            return self.norm(made) + torch.relu(made)

    model = Inside()
    layers = find_layers(model, VECTOR, pairs=[("dense", "norm")])
    with pytest.raises(UnboundedNetworkError, match="something else reads what is inside"):
        NetworkRules(model, VECTOR, layers)


def test_a_bias_that_is_held_counts_at_the_norm_of_its_matrix() -> None:
    """One step of a GRU in closed form, whose bias counts as it is or as it may become."""
    torch.manual_seed(0)
    cell, example = nn.GRUCell(4, 9), torch.zeros(1, 4)
    layers = find_layers(cell, example)
    norms = {name: 0.1 * (place + 1) for place, name in enumerate(layers)}
    a_reset, a_update, a_new = (norms[f"weight_ih[{gate}]"] for gate in ("reset", "update", "new"))
    b_new, own = norms["weight_hh[new]"], float(cell.bias_hh.detach()[18:].abs().max())
    for biases, bias in [({}, own), ({(cell, "bias_hh"): "weight_hh[new]"}, b_new)]:
        k = 3 * b_new + bias
        found = NetworkRules(cell, example, layers, biases).of(norms)
        assert found == pytest.approx(a_new + k / 4 * a_reset + a_update / 2)


# --- Weights that are read without their layer ----------------------------------------------


class Tied(nn.Module):
    """An encoder, and a decoder that uses its weight in some way."""

    def __init__(self, decode: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self._decode = nn.Linear(4, 3), decode

    def forward(self, x: Tensor) -> Tensor:
        return self._decode(torch.relu(self.encoder(x)), self.encoder.weight)


@pytest.mark.parametrize(
    "decode",
    [
        lambda x, weight: F.linear(x, weight.t()),
        lambda x, weight: F.linear(x, weight.t(), torch.ones(4)),
        lambda x, weight: x @ weight,
        lambda x, weight: (weight.t() @ x.t()).t(),
        lambda x, weight: F.linear(x[:, None], weight.data.t())[:, 0],
    ],
)
def test_a_decoder_with_the_weight_of_the_encoder_has_its_norm(decode: Any) -> None:
    torch.manual_seed(0)
    model = Tied(decode)
    layers = find_layers(model, VECTOR)
    assert NetworkRules(model, VECTOR, layers).of({"encoder": 3.0}) == pytest.approx(9.0)


@pytest.mark.parametrize(
    "decode",
    [
        lambda x, weight: F.linear(x, 2 * weight.t()),
        lambda x, weight: F.linear(x, weight.t().clone()),
        lambda x, weight: F.linear(x[:, :2], weight[:2].t()),
        lambda x, weight: x * weight[:, 0],
        lambda x, weight: torch.addmm(torch.zeros(4), x, weight, alpha=5),
        lambda x, weight: F.layer_norm(x, (3,), weight[:, 0]),
    ],
)
def test_other_uses_of_a_weight_without_its_layer_are_refused(decode: Any) -> None:
    torch.manual_seed(0)
    model = Tied(decode)
    with pytest.raises(UnboundedNetworkError, match=r"reads 'encoder\.weight' outside of the lay"):
        NetworkRules(model, VECTOR, find_layers(model, VECTOR))


@pytest.mark.parametrize(
    "decode",
    [
        lambda x, weight: x * float(weight.abs().max()),
        lambda x, weight: x * weight.detach().numpy().max(),
        lambda x, weight: 100 * x if weight[0, 0] > 0 else x,
        lambda x, weight: x * weight.norm().item(),
    ],
)
def test_numbers_read_out_of_a_weight_are_refused(decode: Any) -> None:
    torch.manual_seed(0)
    model = Tied(decode)
    with pytest.raises(UnboundedNetworkError, match=r"reads 'encoder\.weight' outside of the lay"):
        NetworkRules(model, VECTOR, find_layers(model, VECTOR))


def test_the_bias_of_a_layer_is_no_factor() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.forward = lambda x: model[0](x).relu() * model[0].bias  # type: ignore
    with pytest.raises(UnboundedNetworkError, match=r"mul: it reads '0\.bias' outside of the lay"):
        NetworkRules(model, VECTOR, find_layers(model, VECTOR))


def test_factors_are_told_from_what_is_added() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.gate, self.shift = nn.Linear(4, 4), nn.Linear(3, 4), nn.Linear(3, 4)
            self.norm = nn.LayerNorm(4)
            self.register_buffer("constant", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.dense(x)) * self.gate(self.constant)
            return x + self.shift(self.constant)

    model = Gated()
    layers = {"dense": find_layers(model, VECTOR)["dense"]}
    rules = NetworkRules(model, VECTOR, layers)
    assert rules.factors == {"gate.weight", "gate.bias"}
    assert rules.decisions == ()


def test_the_bias_of_a_layer_may_be_added_elsewhere() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.forward = lambda x: model[0](x).relu() + model[0].bias  # type: ignore
    assert NetworkRules(model, VECTOR, find_layers(model, VECTOR)).of({"0": 2.0}) == 2.0
