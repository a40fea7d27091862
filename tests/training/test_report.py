"""What an attachment tells of a run: layers, pressures, and what becomes of inputs."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import spectralclip as sc
from oracle import dense_norm
from spectralclip import NormWarning, attach
from spectralclip.methods import Parametrize, SpectralClip


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))


def inputs(count: int = 32) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (-model(inputs()).norm(dim=1).mean()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("layers", [1, 2])
def test_states_of_recurrent_layers_are_no_scores(layers: int) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.GRU(4, 3, layers, batch_first=True), torch.randn(16, 5, 4)
    attachment = attach(model, torch.optim.SGD(model.parameters()), x)
    expected = model(x)[0].detach().flatten(1).var(0).mean().sqrt()
    assert attachment.report(x).spread == pytest.approx(float(expected), rel=1e-5)


def test_spread_and_gain_of_a_network_that_is_known() -> None:
    model, x = network(), inputs()
    with attach(model, None, x[:1], max_norm=10.0) as attachment:
        report = attachment.report(x)
    with torch.no_grad():
        scores = model(x).numpy()
    variances = scores.var(0, ddof=1)
    assert report.spread == pytest.approx(math.sqrt(variances.mean()), rel=1e-5)
    own = x.numpy().var(0, ddof=1).sum()
    assert report.gain == pytest.approx(math.sqrt(variances.sum() / own), rel=1e-5)


def test_the_bound_of_the_network_is_that_of_its_layers_norms() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer, inputs(1), max_norm=0.7)
    for _ in range(30):
        step(model, optimizer)
    report = attachment.report(inputs())
    assert report.step == 30 and report.max_lipschitz is None
    norms = {name: dense_norm(model.get_submodule(name), model.get_submodule(name).weight.shape[1:])  # type: ignore[union-attr, arg-type]
             for name in ("0", "2")}  # fmt: skip
    for name, norm in norms.items():
        assert report.layers[name].norm == pytest.approx(norm, rel=1e-3)
        assert report.layers[name].max_norm == 0.7
    assert report.bound == pytest.approx(math.prod(norms.values()), rel=1e-3)


def test_before_the_first_step_norms_are_those_of_the_start() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shapes = {name: model.get_submodule(name).weight.shape[1:] for name in ("0", "2")}
    norms = {name: dense_norm(model.get_submodule(name), shape) for name, shape in shapes.items()}  # type: ignore[arg-type]
    report = attach(model, optimizer, inputs(1), max_norm=0.01).report(inputs())
    for name, norm in norms.items():
        assert report.layers[name].norm == pytest.approx(norm, rel=1e-2)
    assert report.bound == pytest.approx(math.prod(norms.values()), rel=2e-2)


def test_norms_that_are_not_known_leave_the_network_without_a_bound() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = attach(model, optimizer, inputs(1), method=sc.methods.Gouk()).report(inputs())
    assert report.bound is None and all(one.norm is None for one in report.layers.values())


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_pressure_is_the_share_of_a_step_that_is_undone(max_norm: float) -> None:
    """One layer, one step of plain gradient descent: what is left of it can be computed."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attachment = attach(model, optimizer, inputs(1), max_norm=max_norm)
    step(model, optimizer)
    assert attachment.report(inputs()).layers[""].pressure is None
    start = model.weight.detach().clone()
    step(model, optimizer)
    assert model.weight.grad is not None
    taken = 0.05 * model.weight.grad
    undone = model.weight.detach() - (start - taken)
    share = float(undone.norm() / taken.norm())
    pressure = attachment.report(inputs()).layers[""].pressure
    assert pressure == pytest.approx(share, rel=1e-3, abs=1e-6)
    assert (share > 0.1) == (max_norm == 0.5)


def test_methods_that_move_no_weights_have_no_pressure() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer, inputs(1), method=Parametrize())
    for _ in range(3):
        step(model, optimizer)
    layers = attachment.report(inputs()).layers
    assert [one.pressure for one in layers.values()] == [None, None]


def test_a_network_without_a_bound_has_none() -> None:
    model = network()
    model.forward = lambda x: model[0](x) * x[:, :5]  # type: ignore[method-assign]
    with attach(model, None, inputs(2)) as attachment:
        assert attachment.report(inputs()).bound is None


def test_tokens_have_a_spread_and_no_gain() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    tokens = torch.randint(9, (16, 3))
    with attach(model, None, tokens) as attachment:
        report = attachment.report(tokens)
    assert report.spread > 0 and math.isnan(report.gain)


def test_printed() -> None:
    with attach(network(), None, inputs(1), max_lipschitz=4.0) as attachment:
        lines = str(attachment.report(inputs())).splitlines()
    assert lines[0] == "step 0"
    assert lines[1].split() == ["layer", "norm", "bound", "pressure"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "2"]
    assert "held at 4" in lines[4] and lines[5].startswith("scores: spread")


def test_one_input_alone_says_nothing() -> None:
    with attach(network(), None, inputs(1)) as attachment, pytest.raises(ValueError, match="batch"):
        attachment.report(inputs(1))


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    drawn = torch.get_rng_state()
    with attach(model, None, torch.zeros(2, 1, 6, 6)) as attachment:
        attachment.report(torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training and all(part.training for part in model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- Seen early ------------------------------------------------------------------------------


def deep(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(16, 16, bias=False), nn.ReLU())]
    return nn.Sequential(*parts)


def test_a_network_that_contracts_is_warned_of_once() -> None:
    model = deep(12)
    with pytest.warns(NormWarning, match="no gradient to speak of.*init_at_bound_") as caught:
        attach(model, None, torch.zeros(1, 16)).remove()
    assert len(caught) == 1


@pytest.mark.parametrize("method", [SpectralClip(), Parametrize()], ids=["moves", "parametrizes"])
def test_one_that_does_not_is_not(method: sc.Method) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(deep(2), None, torch.zeros(1, 16), method=method).remove()


def test_what_helps_helps() -> None:
    model = deep(12)
    sc.init_at_bound_(model, torch.zeros(1, 16), max_norm=1.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(model, None, torch.zeros(1, 16), max_norm=1.4).remove()


def test_the_norms_of_weights_that_are_above_their_bounds_are_accounted_for() -> None:
    """The spread that is foreseen is that of the network after it has been clipped."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    torch.manual_seed(0)
    for part in model:
        nn.init.orthogonal_(part.weight, gain=10.0)  # type: ignore[arg-type]
    with attach(model, None, torch.zeros(1, 8), max_norm=0.5) as attachment:
        foreseen = attachment.foreseen_spread()
    # 16 standard normal inputs, times 0.5 twice.
    assert foreseen == pytest.approx(0.25, rel=0.15)


def test_pressures_of_optimizers_that_step_in_turn() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.5) for layer in model]
    attachment = attach(model, optimizers, torch.zeros(1, 6), max_norm=0.5)
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
            (-model(inputs()).square().mean()).backward()
            optimizer.step()
    pressures = attachment.pressures()
    assert set(pressures) == {"0", "1"}
    assert all(0 < share <= 1.5 for share in pressures.values())
