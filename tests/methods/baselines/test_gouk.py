"""Gouk and Farnia: the power method by the transposed layer, and scaling where above."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import train_batch_norm
from power_cases import at_rest
from torch import Tensor, nn
from training_cases import (
    EXAMPLE,
    assert_identical,
    sgd,
    small_network,
    snapshot,
    train,
    true_norms,
)

from oracle import dense_matrix, dense_norm
from spectralclip import NormWarning, attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines import _power
from spectralclip.methods.baselines.farnia import Farnia
from spectralclip.methods.baselines.gouk import Gouk

PADDINGS = ("zeros", "circular", "reflect", "replicate")
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stride": {"stride": 2},
    "wide": {"kernel_size": 5, "padding": 2},
    "groups": {"groups": 2},
    "dilation": {"dilation": 2, "padding": 2},
}


def conv(mode: str, **options: Any) -> nn.Conv2d:
    usual = {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "padding": 1}
    return nn.Conv2d(**{**usual, **options}, padding_mode=mode)


# --- The estimate -------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mode", PADDINGS)
def test_the_estimate_is_the_true_norm_for_every_padding(mode: str, setting: str) -> None:
    layer = conv(mode, **SETTINGS[setting])
    truth = dense_norm([layer], (4, 9, 8))
    estimate = Gouk.estimate(layer, (4, 9, 8))
    assert estimate == pytest.approx(truth, rel=1e-3)
    assert estimate <= truth * (1 + 1e-5)


@pytest.mark.parametrize(
    ("make", "in_shape"),
    [
        (lambda: nn.Linear(9, 7), (9,)),
        (lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 11)),
        (lambda: nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
        (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5)),
    ],
)
def test_the_estimate_of_other_layers(
    make: Callable[[], nn.Module], in_shape: tuple[int, ...]
) -> None:
    layer = make()
    truth = dense_norm([layer], in_shape)
    assert Gouk.estimate(layer, in_shape) == pytest.approx(truth, rel=1e-3)
    assert Farnia.estimate(layer, in_shape) == Gouk.estimate(layer, in_shape)


def test_the_estimate_of_a_batch_norm_is_exact() -> None:
    norm = nn.BatchNorm2d(5)
    train_batch_norm(norm)
    variance = norm.running_var.double().numpy()
    factors = norm.weight.detach().double().numpy() / np.sqrt(variance + norm.eps)
    assert Gouk.estimate(norm, (5, 3, 3)) == pytest.approx(np.abs(factors).max(), rel=1e-12)


def test_five_iterations_from_a_random_vector_are_too_few() -> None:
    """What is missing: between 2 and 20 percent, on each of these."""
    for mode in PADDINGS:
        layer = nn.Conv2d(8, 8, 3, padding=1, padding_mode=mode)
        share = Gouk.estimate(layer, (8, 8, 8), power_iterations=5) / dense_norm([layer], (8, 8, 8))
        assert 0.8 < share < 0.98


def test_the_estimate_depends_on_the_generator_alone() -> None:
    layer = conv("reflect")

    def few(generator: torch.Generator | None) -> float:
        return Gouk.estimate(layer, (4, 8, 8), generator=generator, power_iterations=2)

    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    first, again, other = map(few, seeds)
    assert first == again != other
    assert few(None) == few(None)


@pytest.mark.parametrize("layer", [nn.AvgPool2d(2), [nn.Linear(2, 2), nn.Linear(2, 2)]])
@pytest.mark.parametrize("method", [Gouk, Farnia])
def test_other_layers_are_refused(method: Any, layer: Any) -> None:
    with pytest.raises(OutsideDomain, match=rf"{method.__name__} is not defined for"):
        method.estimate(layer, (2,))


# --- The steps, on dense matrices -----------------------------------------------------------


def power_steps(matrix: np.ndarray, x: np.ndarray, iterations: int) -> tuple[float, np.ndarray]:
    for _ in range(iterations):
        x = matrix.T @ (matrix @ x)
        x = x / np.linalg.norm(x)
    return float(np.linalg.norm(matrix @ x)), x


@pytest.mark.parametrize(
    ("method", "iterations", "warm"),
    [(Gouk(), 5, False), (Gouk(3, warm=True), 3, True), (Farnia(), 1, True)],
)
@pytest.mark.parametrize("mode", PADDINGS)
def test_the_steps_are_those_of_the_paper(
    mode: str, method: Any, iterations: int, warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    monkeypatch.setattr(_power, "random_start", lambda op, generator: start)
    model = nn.Sequential(conv(mode)).double()
    twin = copy.deepcopy(model)
    attachment = attach(model, None, torch.zeros(1, 4, 6, 6).double(), method=method, max_norm=0.5)
    x = start.numpy().ravel()
    for _ in range(4):
        moved = 0.1 * torch.randn(model[0].weight.shape, dtype=torch.float64)
        with torch.no_grad():
            model[0].weight.add_(moved)
            twin[0].weight.add_(moved)
        attachment.step()
        sigma, found = power_steps(dense_matrix(twin, (4, 6, 6)), x, iterations)
        x = found if warm else x
        with torch.no_grad():
            twin[0].weight.div_(max(1.0, sigma / 0.5))
        torch.testing.assert_close(model[0].weight, twin[0].weight, rtol=1e-10, atol=0)
        assert attachment.norms()["0"] == pytest.approx(min(sigma, 0.5), rel=1e-10)
    assert attachment.num_matvecs == 4 * (2 * iterations + 1)


@pytest.mark.parametrize("mode", PADDINGS)
def test_what_the_same_vector_misses_is_never_seen(mode: str) -> None:
    missed = at_rest(Gouk(), 1, mode)
    assert missed > 1.02
    assert at_rest(Gouk(), 20, mode) == pytest.approx(missed, rel=1e-5)
    assert at_rest(Gouk(warm=True), 200, mode) == pytest.approx(1, abs=1e-3)


# --- Beside a training ----------------------------------------------------------------------


@pytest.mark.parametrize("method", [Gouk(), Gouk(warm=True), Farnia()])
def test_norms_are_held_near_the_bound_in_training(method: Any) -> None:
    """Without the method they are between 0.9 and 3.3 then. Estimates are from below."""
    model = small_network()
    optimizer = sgd(model, 0.02)
    attachment = attach(model, optimizer, EXAMPLE, method=method, max_norm=0.8)
    train(model, optimizer, 25)
    norms = attachment.norms()
    for name, truth in true_norms(attachment).items():
        assert truth <= 0.8 * 1.25, name
        assert 0.75 * truth <= norms[name] <= min(truth, 0.8) * (1 + 1e-4)


def test_a_warm_vector_holds_on_to_its_frequency() -> None:
    """Frequencies of a circular convolution do not mix: the vector does not see another grow."""
    model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.5, 0.5, 0.5]))  # constant images, by 1.5
    attachment = attach(model, None, torch.zeros(1, 1, 8), method=Gouk(warm=True))
    for _ in range(20):
        attachment.step()
    with torch.no_grad():  # now those whose sign alternates, by 1.4
        model[0].weight.copy_(torch.tensor([-0.5, 0.4, -0.5]))
    attachment.step()
    assert attachment.norms()["0"] < 0.7
    assert dense_norm(model, (1, 8)) == pytest.approx(1.4, rel=1e-5)


def test_batch_norms_are_clamped_if_asked_for() -> None:
    layers = {}
    for batch_norm in (True, False):
        model = small_network()
        optimizer = sgd(model)
        method = Gouk(batch_norm=batch_norm)
        attachment = attach(model, optimizer, EXAMPLE, method=method, max_norm=0.6)
        train(model, optimizer, 5)
        layers[batch_norm] = list(attachment.layers)
        for index in (1, 4):
            norm: Any = model[index]
            factors = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
            assert bool(factors.abs().max() <= 0.6 * (1 + 1e-6)) == batch_norm
    assert set(layers[True]) - set(layers[False]) == {"1", "4"}
    farnia = attach(small_network(), None, EXAMPLE, method=Farnia())
    assert list(farnia.layers) == layers[False]


def test_layers_within_the_bound_stay_bit_for_bit() -> None:
    for method in (Gouk(), Farnia()):
        model = small_network()
        before = snapshot(model)
        attachment = attach(model, None, EXAMPLE, method=method, max_norm=100.0)
        attachment.step()
        assert_identical(snapshot(model), before)


@pytest.mark.parametrize("method", [Gouk(), Gouk(2, warm=True), Farnia()])
def test_a_resumed_run_is_the_same_run(method: Any) -> None:
    whole, resumed = small_network(), small_network()
    runs = []
    for model in (whole, resumed):
        optimizer = sgd(model)
        runs.append(
            (model, optimizer, attach(model, optimizer, EXAMPLE, method=method, max_norm=0.7))
        )
        train(model, optimizer, 3)
    states = [copy.deepcopy(part.state_dict()) for part in runs[1]]
    again = small_network(seed=5)
    optimizer = sgd(again)
    runs[1] = (again, optimizer, attach(again, optimizer, EXAMPLE, method=method, max_norm=0.7))
    for part, state in zip(runs[1], states, strict=True):
        part.load_state_dict(state)
    for model, optimizer, _ in runs:
        train(model, optimizer, 3, first=3)
    for first, second in zip(*runs, strict=True):
        assert_identical(first.state_dict(), second.state_dict())


class Twice(nn.Module):
    """One convolution on two sizes; its norm is larger on the larger one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[..., :3]).sum() + self.conv(x).sum()


def test_the_bound_holds_for_each_use() -> None:
    model = Twice()
    attachment = attach(model, None, torch.zeros(1, 2, 20), method=Gouk(2000), max_norm=0.5)
    assert len(attachment.layers["conv"].in_shapes) == 2
    attachment.step()
    assert dense_norm([model.conv], (2, 20)) == pytest.approx(0.5, rel=1e-3)
    assert dense_norm([model.conv], (2, 3)) < 0.499


@pytest.mark.parametrize("method", [Gouk(), Farnia()])
def test_weights_that_are_not_finite_are_reported_once(method: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    attachment = attach(model, None, torch.zeros(1, 4), method=method, max_norm=0.1)
    attachment.step()
    good = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.warns(NormWarning, match="layer '0'.*restored"):
        attachment.step()
    attachment.step()
    assert np.isnan(attachment.norms()["0"])
    with torch.no_grad():
        model[0].weight.copy_(3 * good)
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(0.1)


@pytest.mark.parametrize("make", [Gouk, Farnia])
def test_settings_are_checked(make: Any) -> None:
    with pytest.raises(ValueError, match="power_iterations must be at least 1"):
        make(power_iterations=0)
    with pytest.raises(ValueError, match="power_iterations must be at least 1"):
        make.estimate(nn.Linear(2, 2), (2,), power_iterations=0)
