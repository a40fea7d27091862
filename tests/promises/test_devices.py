"""On a device without float64, everything works, and what is called a bound is one."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from devices_sim import NARROW, NarrowTensor, without_float64
from torch import nn

import spectralclip as sc
from oracle import dense_matrix, singular_values

Parts = list[nn.Module]


def conv(mode: str = "zeros", stride: int = 1) -> nn.Module:
    return nn.Conv2d(2, 3, 3, padding=1, stride=stride, padding_mode=mode)


def with_statistics(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.uniform_(-2.0, 2.0)
    return norm


LAYERS: dict[str, tuple[Callable[[], Parts], tuple[int, ...]]] = {
    "dense": (lambda: [nn.Linear(6, 5)], (6,)),
    "1x1": (lambda: [nn.Conv2d(2, 3, 1)], (2, 5, 5)),
    "zero": (lambda: [conv()], (2, 7, 7)),
    "circular": (lambda: [conv("circular")], (2, 6, 6)),
    "circular stride": (lambda: [conv("circular", 2)], (2, 6, 6)),
    "reflect": (lambda: [conv("reflect")], (2, 7, 7)),
    "batch norm": (lambda: [with_statistics(nn.BatchNorm2d(2))], (2, 4, 4)),
    "conv+BN": (lambda: [conv(), with_statistics(nn.BatchNorm2d(3))], (2, 7, 7)),
    "transposed": (lambda: [nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)], (2, 5, 5)),
    "pooled": (lambda: [conv(), nn.AvgPool2d(3)], (2, 9, 9)),
    "embedding": (lambda: [nn.Embedding(7, 5)], (2, 7)),
}


@pytest.fixture(autouse=True)
def device() -> Iterator[torch.device]:
    with without_float64() as device:
        yield device


def layer_of(parts: Parts) -> Any:
    return parts if len(parts) > 1 else parts[0]


def oracle(parts: Parts, in_shape: tuple[int, ...]) -> np.ndarray:
    """The singular values of the dense matrix, in float64 on the CPU."""
    return singular_values(layer_of(on_cpu(parts)), in_shape)


def on_cpu(parts: Parts) -> Parts:
    return [copy.deepcopy(part).to("cpu").double().eval() for part in parts]


def every_layer(*quick: str) -> Any:
    """All layers; but for a few, with the slow tests."""
    slow = [pytest.param(n, marks=pytest.mark.slow) for n in LAYERS if n not in quick]
    return pytest.mark.parametrize("name", [*quick, *slow])


def made(name: str, device: torch.device) -> tuple[Parts, tuple[int, ...]]:
    build, in_shape = LAYERS[name]
    return [part.to(device) for part in build()], in_shape


# --- The simulation itself ------------------------------------------------------------------


@pytest.mark.parametrize(
    "what",
    [
        lambda x: x.double(),
        lambda x: x.to(torch.float64),
        lambda x: x.to("cpu", torch.float64),
        lambda x: x.to(torch.complex128),
        lambda x: torch.zeros(3, dtype=torch.float64, device=x.device),
        lambda x: torch.zeros(3, dtype=torch.float64).to(x.device),
        lambda x: torch.zeros_like(x, dtype=torch.float64),
        lambda x: torch.zeros(3, 3, dtype=torch.float64).copy_(x),
    ],
)
def test_the_device_has_no_float64(what: Any, device: torch.device) -> None:
    with pytest.raises(TypeError, match="on a device that has none"):
        what(torch.ones(3, 3).to(device))


def test_the_device_is_one_of_its_own(device: torch.device) -> None:
    x = torch.ones(3, 3).to(device)
    assert x.device == NARROW and isinstance(x + 1, NarrowTensor)
    with pytest.raises(RuntimeError, match="of the CPU and of the device"):
        x @ torch.ones(3, 3)
    with pytest.raises((TypeError, RuntimeError)):
        x.numpy()
    with pytest.raises(NotImplementedError, match="qr"):
        torch.linalg.qr(x)
    assert torch.ones(3, dtype=torch.float64).to(device, torch.float32).dtype == torch.float32
    assert x.cpu().double().sum() == 9


# --- Layers ---------------------------------------------------------------------------------


@every_layer("dense", "reflect")
@pytest.mark.filterwarnings("ignore::spectralclip.ConvergenceWarning")
def test_values_are_those_of_the_dense_matrix(name: str, device: torch.device) -> None:
    parts, in_shape = made(name, device)
    layer, true = layer_of(parts), oracle(parts, in_shape)
    for solver in ("auto", sc.Lanczos(), sc.PowerQR(iterations=60), sc.Exact()):
        found = sc.svds(layer, in_shape, 2, tol=1e-4, solver=solver)
        assert found.S.device == found.U.device == found.V.device == NARROW
        is_slow = isinstance(solver, sc.PowerQR)
        assert found.converged or is_slow
        np.testing.assert_allclose(found.S.cpu().numpy(), true[:2], rtol=0.1 if is_slow else 2e-4)
    values = sc.singular_values(layer, in_shape)
    assert values.device == NARROW
    np.testing.assert_allclose(values.cpu().numpy(), true, atol=2e-6 * true[0])


@every_layer("circular", "reflect")
def test_bounds_hold_the_norm_of_the_dense_matrix(name: str, device: torch.device) -> None:
    parts, in_shape = made(name, device)
    layer, true = layer_of(parts), oracle(parts, in_shape)[0]
    for settings in ({}, {"deterministic": True}, {"tol": 1e-5}):
        interval = sc.norm_bounds(layer, in_shape, **settings)
        assert true in interval and interval.width <= settings.get("tol", 0.05)


def test_a_deterministic_bound_needs_no_float64_on_the_device(device: torch.device) -> None:
    parts = [nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect").to(device)]
    interval = sc.norm_bounds(parts[0], (4, 17, 17), deterministic=True)
    assert interval.kind == "cholesky" and interval.width < 0.01
    assert oracle(parts, (4, 17, 17))[0] in interval


@every_layer("dense")
def test_clipped_layers_are_within_the_bound(name: str, device: torch.device) -> None:
    for share, settings in (
        (0.95, {}),
        (0.5, {}),
        (0.005, {}),
        (0.8, {"certify": True}),
        (0.8, {"certify": "deterministic"}),
        (0.8, {"exact": True}),
    ):
        parts, in_shape = made(name, device)
        if "exact" in settings and name == "pooled":
            continue
        bound = share * oracle(parts, in_shape)[0]
        result = sc.clip_(layer_of(parts), in_shape, bound, **settings)
        reached = oracle(parts, in_shape)[0]
        assert result.converged
        assert reached <= bound * (1 if "certify" in settings else 1.001)
        assert reached >= 0.98 * bound
        assert all(p.device == NARROW for part in parts for p in part.parameters())


@every_layer("conv+BN")
def test_the_gradient_of_the_norm(name: str, device: torch.device) -> None:
    parts, in_shape = made(name, device)
    mine = [p for part in parts for p in part.parameters()]
    sc.spectral_norm(layer_of(parts), in_shape, tol=1e-6, differentiable=True).backward()
    twins = [part.requires_grad_() for part in on_cpu(parts)]
    sc.spectral_norm(layer_of(twins), in_shape, tol=1e-9, differentiable=True).backward()
    for own, twin in zip(mine, (p for t in twins for p in t.parameters()), strict=True):
        assert (own.grad is None) == (twin.grad is None)
        if own.grad is not None:
            np.testing.assert_allclose(own.grad.cpu().numpy(), twin.grad.numpy(), atol=5e-3)


def test_operators_on_the_device(device: torch.device) -> None:
    parts, in_shape = made("reflect", device)
    matrix = dense_matrix(layer_of(on_cpu(parts)), in_shape)
    op = sc.as_operator(parts[0], in_shape)
    x = np.random.default_rng(0).standard_normal(op.shape[1])
    np.testing.assert_allclose(op.to_scipy().matvec(x), matrix @ x, atol=1e-5)
    wide = sc.as_operator(parts[0], in_shape, dtype=torch.float64)
    assert wide.device == torch.device("cpu") and wide.dtype == torch.float64
    given = torch.ones(in_shape).to(device)
    image = matrix @ np.ones(op.shape[1])
    np.testing.assert_allclose(wide.matvec(given).flatten().numpy(), image, atol=1e-12)
    sc.check_affine(parts[0], in_shape)


@every_layer("dense")
def test_spectra_can_be_set(name: str, device: torch.device) -> None:
    parts, in_shape = made(name, device)
    layer = layer_of(parts)
    found = sc.svds(layer, in_shape, 2, tol=1e-5)
    unmet = sc.set_spectrum_(layer, in_shape, found, np.array([0.9, 0.9]) * found.S.tolist())
    assert 0 <= unmet < 1


# --- Models ---------------------------------------------------------------------------------


def network(mode: str) -> nn.Sequential:
    return nn.Sequential(
        conv(mode),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, padding=1, padding_mode=mode),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 36, 4),
    )


def trained(model: nn.Module, x: torch.Tensor, method: sc.Method, steps: int = 2) -> Any:
    labels = (torch.arange(len(x)) % 4).to(x.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    attachment = sc.attach(model, optimizer, x[:1], method=method, max_norm=0.7)
    for _ in range(steps):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), labels) + attachment.penalty()).backward()
        optimizer.step()
    attachment.load_state_dict(attachment.state_dict())
    return attachment


@pytest.mark.parametrize(
    "mode",
    ["zeros", *(pytest.param(m, marks=pytest.mark.slow) for m in ("circular", "reflect"))],
)
def test_training_keeps_the_bound(mode: str, device: torch.device) -> None:
    model = network(mode).to(device)
    x = torch.randn(6, 2, 6, 6).to(device)
    attachment = trained(model, x, sc.methods.SpectralClip())
    for found in attachment.layers.values():
        assert oracle(list(found.modules), found.in_shapes[0])[0] <= 1.02 * 0.7
    layers = attachment.layers
    attachment.finalize(certify=True)
    for found in layers.values():
        assert oracle(list(found.modules), found.in_shapes[0])[0] <= 0.7


# Gradient checkpoints, which LOT uses, look the device up by its name.
METHODS = [name for name in sc.methods.available() if name not in ("spectral_clip", "lot")]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::spectralclip.NormWarning")
def test_every_method_trains(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    model, x = network("zeros").to(device), torch.randn(6, 2, 6, 6).to(device)
    attachment = trained(model, x, sc.methods.get(name)())
    assert all(math.isfinite(norm) for norm in attachment.norms().values())
    attachment.finalize()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.slow
def test_models_as_on_the_cpu(device: torch.device) -> None:
    twin, x = network("reflect").eval(), torch.randn(1, 2, 6, 6)
    model = copy.deepcopy(twin).to(device)
    there, here = sc.audit(model, x.to(device)), sc.audit(twin, x)
    for row, other in zip(there.layers, here.layers, strict=True):
        assert row.norm.upper == pytest.approx(other.norm.upper, rel=1e-4)
        assert row.frobenius == pytest.approx(other.frobenius, rel=1e-4)
    for settings in ({}, {"deterministic": True}):
        there = sc.lipschitz_bounds(model, x.to(device), **settings)
        here = sc.lipschitz_bounds(twin, x, **settings)
        assert there.upper == pytest.approx(here.upper, rel=1e-4)
        assert there.lower == pytest.approx(here.lower, rel=1e-2)


def test_constants_in_a_network_are_weighed_without_float64(device: torch.device) -> None:
    """Each was converted on the device; the second swallowed the error and found no bound."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor([1.0, -3.0, 0.5, 2.0]))
            self.norm = with_statistics(nn.BatchNorm1d(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.batch_norm(
                x * self.scale, self.norm.running_mean, self.norm.running_var, self.norm.weight
            )
            return y[:, [0, 0, 1, 3]].relu()

    model = Scaled().eval()
    upper = sc.lipschitz_bounds(model, torch.randn(1, 4)).upper
    there = sc.lipschitz_bounds(model.to(device), torch.randn(1, 4).to(device)).upper
    assert math.isfinite(upper) and there == pytest.approx(upper, rel=1e-5)


def test_jacobians(device: torch.device) -> None:
    twin, x = network("zeros").eval(), torch.randn(1, 2, 6, 6)
    jacobian = torch.autograd.functional.jacobian(twin.double(), x.double()).reshape(4, -1)
    true = float(torch.linalg.matrix_norm(jacobian, 2))
    model = copy.deepcopy(twin).float().to(device)
    op = sc.jacobian_operator(model, x.to(device))
    assert float(sc.svds(op, op.in_shape, 1).S[0]) == pytest.approx(true, rel=1e-3)
    assert true in sc.norm_bounds(op, op.in_shape)


@pytest.mark.slow
def test_whole_models_are_clipped(device: torch.device) -> None:
    model = network("circular").to(device)
    results = sc.clip_model_(model, torch.randn(1, 2, 6, 6).to(device), 0.3, certify=True)
    found = sc.find_layers(model, torch.randn(1, 2, 6, 6).to(device))
    assert results.keys() == found.keys()
    for layer in found.values():
        assert oracle(list(layer.modules), layer.in_shapes[0])[0] <= 0.3


def test_whole_models_start_at_the_bound(device: torch.device) -> None:
    model, x = network("circular").to(device), torch.randn(1, 2, 6, 6).to(device)
    results = sc.init_at_bound_(model, x, max_norm=0.3)
    assert all(parameter.device.type == device.type for parameter in model.parameters())
    for name, layer in sc.find_layers(model, x).items():
        values = oracle(list(layer.modules), layer.in_shapes[0])
        assert values[0] == pytest.approx(0.3, rel=1e-4)
        assert results[name].norm == pytest.approx(0.3, rel=1e-4)
