"""Rules for recurrent layers, against the slopes that are found on them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrize

from oracle.slopes import Function
from spectralclip import attach, init_at_bound_, lipschitz_bounds
from spectralclip._lipschitz.recurrent import _growth

STEPS = 4
LAYERS: dict[str, Any] = {
    "rnn": lambda: nn.RNN(3, 3),
    "rnn-relu": lambda: nn.RNN(3, 3, nonlinearity="relu"),
    "rnn-two-ways-two-layers": lambda: nn.RNN(3, 2, 2, bidirectional=True),
    "gru": lambda: nn.GRU(3, 3),
    "gru-two-layers": lambda: nn.GRU(3, 2, 2),
    "lstm": lambda: nn.LSTM(3, 3),
    "lstm-projected": lambda: nn.LSTM(3, 4, proj_size=2, bidirectional=True),
}


def steepest(function: Any, shape: tuple[int, ...], rounds: int = 8) -> float:
    """The largest norm of the Jacobian at points of very different sizes, in float64."""
    generator, found = torch.Generator().manual_seed(0), 0.0
    for index in range(rounds):
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (index % 4 - 2)
        jacobian = torch.autograd.functional.jacobian(function, x).reshape(-1, x.numel())
        found = max(found, float(torch.linalg.matrix_norm(jacobian, 2)))
    return found


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("name", LAYERS)
def test_no_slope_is_above_the_rule(name: str, scale: float) -> None:
    with seeded(1):
        layer = LAYERS[name]().double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(scale)
    count = 3 if isinstance(layer, nn.LSTM) else 2
    for item in range(count):

        def part(x: Tensor, layer: nn.Module = layer, item: int = item) -> Tensor:
            found = layer(x)
            return [found[0], *(found[1] if count == 3 else [found[1]])][item]  # type: ignore[no-any-return]

        x = torch.randn(STEPS, 1, 3, dtype=torch.float64)
        bound = lipschitz_bounds(Function(part, layer), x, local=False)
        assert steepest(part, (STEPS, 1, 3)) <= bound.upper < math.inf


GATES = {
    "rnn": (nn.RNNCell, [""]),
    "gru": (nn.GRUCell, ["[reset]", "[update]", "[new]"]),
    "lstm": (nn.LSTMCell, ["[input]", "[forget]", "[cell]", "[output]"]),
}
# Each gate by itself, and all together.
STEPS_OF = [(name, gate) for name, (_, gates) in GATES.items() for gate in (*gates, "all")]


@pytest.mark.parametrize(("name", "kept"), STEPS_OF)
def test_no_slope_of_a_step_is_above_its_growth(name: str, kept: str) -> None:
    """Every factor of a step by itself, from states of all sizes that its bound names."""
    kind, gates = GATES[name]
    with seeded(2):
        cell = kind(3, 4).double()
    norms = {}
    for side in ("weight_ih", "weight_hh"):
        for gate, part in zip(gates, getattr(cell, side).data.split(4), strict=True):
            part.mul_(2 if kept in ("all", gate) else 0)
            norms[side + gate] = float(torch.linalg.matrix_norm(part, 2))
    if name == "gru":
        norms["bias_hh"] = float(cell.bias_hh.detach()[8:].abs().max())
    sizes = (1.5, 2.5)
    growth = _growth(cell, "", norms, sizes)
    generator = torch.Generator().manual_seed(0)

    def step(x: Tensor, h: Tensor, c: Tensor) -> Any:
        return cell(x, (h, c)) if name == "lstm" else (cell(x, h),)

    for index in range(20):
        x = torch.randn(3, generator=generator, dtype=torch.float64) * 10.0 ** (index % 4 - 2)
        draws = torch.rand(2, 4, generator=generator, dtype=torch.float64)
        states = [(2 * draw - 1) * size for draw, size in zip(draws, sizes, strict=True)]
        jacobians = torch.autograd.functional.jacobian(step, (x, *states))
        for row, of_result in enumerate(jacobians):
            allowed = [growth.from_input[row], *growth.from_state[row]]
            for limit, one in zip(allowed, of_result, strict=False):
                assert float(torch.linalg.matrix_norm(one, 2)) <= limit * (1 + 1e-12)


def test_a_contracting_rnn_by_hand() -> None:
    layer = nn.RNN(2, 2, bias=False, nonlinearity="relu")
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(2) * 3)
        layer.weight_hh_l0.copy_(torch.eye(2) / 2)
    model = Function(lambda x, layer: layer(x)[0], layer)
    bound = lipschitz_bounds(model, torch.ones(6, 1, 2))
    # A positive input is followed linearly: the true constant is the norm of a triangular matrix.
    powers = np.tril(0.5 ** np.subtract.outer(range(6), range(6)))
    assert bound.lower == pytest.approx(3 * np.linalg.norm(powers, 2), rel=0.02)
    assert bound.upper == pytest.approx(3 * powers.sum(1).max(), rel=1e-6)
    assert bound.steps[0].note == "over 6 steps"


class Loop(nn.Module):
    """A cell in a loop of one's own, from a given state or from none."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for row in x.unbind(1):
            state = self.cell(row, state)
        return state if isinstance(state, Tensor) else state[0]


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_in_a_loop_are_followed(kind: Any) -> None:
    with seeded(3):
        model = Loop(kind(3, 4)).double()
    bound = lipschitz_bounds(model, torch.randn(1, STEPS, 3, dtype=torch.float64), local=False)
    assert steepest(model, (1, STEPS, 3)) <= bound.upper < math.inf


def test_states_of_unknown_size_have_no_bound() -> None:
    class Given(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            if isinstance(self.layer, nn.GRUCell):
                return self.layer(x[0], x[0])  # type: ignore[no-any-return]
            return self.layer(x, x[:1])[0]  # type: ignore[no-any-return]

    for model, reason in (
        (Given(nn.GRUCell(3, 3)), "size of its state is not known"),
        (Given(nn.GRU(3, 3)), "first state depends on the input"),
    ):
        bound = lipschitz_bounds(model, torch.randn(1, 4, 3), local=False)
        assert math.isinf(bound.upper) and bound.unbounded[0].where == "layer"
        assert reason in bound.unbounded[0].reason


class Unknown(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.exp())[0]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(nn.utils.rnn.pack_sequence([x[0]]))[1]  # type: ignore[no-any-return]


def test_packed_sequences_have_no_bound() -> None:
    bound = lipschitz_bounds(Packed(), torch.randn(1, 4, 3), local=False)
    assert math.isinf(bound.upper) and bound.unbounded[-1].where == "layer"
    assert "packed" in bound.unbounded[-1].reason


def test_what_computes_something_else_is_not_guessed() -> None:
    bound = lipschitz_bounds(
        Function(lambda x, layer: layer(x), Unknown(3, 3)), torch.randn(1, 4, 3)
    )
    (place,) = bound.unbounded
    assert place.operation == "Unknown" and "in a way that is not known" in place.reason


@pytest.mark.parametrize("before", [True, False])
def test_hooks_around_a_layer_are_not_overlooked(before: bool) -> None:
    layer = nn.LSTM(3, 3)
    if before:
        layer.register_forward_pre_hook(lambda layer, args: (50 * args[0],))
    else:
        layer.register_forward_hook(lambda layer, args, found: (50 * found[0], found[1]))
    model = Function(lambda x, layer: layer(x)[0], layer)
    (place,) = lipschitz_bounds(model, torch.randn(1, 4, 3), local=False).unbounded
    assert place.operation == "LSTM" and "hooks" in place.reason


class Times(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 100 * x


def test_a_bias_that_is_computed_counts_as_it_is() -> None:
    """With `n = tanh(r * 100 - 50)`, the slope of the reset gate is multiplied by 100."""
    layer = nn.GRU(1, 1).double()
    weights = {"ih": (1.0, 0.0, 0.0), "hh": (0.0, 0.0, 0.0)}
    biases = {"ih": (0.0, -20.0, -50.0), "hh": (0.0, 0.0, 1.0)}
    with torch.no_grad():
        for side in ("ih", "hh"):
            getattr(layer, f"weight_{side}_l0").copy_(torch.tensor(weights[side])[:, None])
            getattr(layer, f"bias_{side}_l0").copy_(torch.tensor(biases[side]))
    parametrize.register_parametrization(layer, "bias_hh_l0", Times())
    x = torch.zeros(1, 1, 1, dtype=torch.float64)
    slope = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x).item()
    assert slope == pytest.approx(25, rel=1e-6)
    model = Function(lambda x, layer: layer(x)[0], layer)
    assert slope <= lipschitz_bounds(model, x, local=False).upper < math.inf


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.rnn, self.out = nn.RNN(4, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]


def test_a_network_with_a_recurrent_layer_is_held_as_a_whole() -> None:
    model, x = Classifier(), torch.randn(16, 5, 4, generator=torch.Generator().manual_seed(0))
    init_at_bound_(model, x, max_lipschitz=4.0)
    assert lipschitz_bounds(model, x[:1], local=False).upper == pytest.approx(4.0, rel=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    attachment = attach(model, optimizer, x, max_lipschitz=4.0)
    assert set(attachment.max_norms) == {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "out"}
    for _ in range(6):
        optimizer.zero_grad()
        (-10 * model(x).square().sum()).backward()
        optimizer.step()
        assert lipschitz_bounds(model, x[:1], local=False).upper <= 1.02 * 4.0
    attachment.finalize(certify=True)
    assert attachment.network_bound is not None and attachment.network_bound.upper <= 4.0
