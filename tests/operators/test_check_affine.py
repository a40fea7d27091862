"""Layers that look harmless: a cut backward pass, a patched forward, buffers written into."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spectralclip as sc


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class PartlyDetached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + (5 * x).detach()


@pytest.mark.parametrize("layer", [Encoder(), PartlyDetached()], ids=["no_grad", "detach"])
def test_a_cut_backward_pass_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"backward pass of .* is not the transpose"):
        sc.svds(layer, (6,), 1)


def test_a_patched_forward_counts() -> None:
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: 10 * F.linear(x, layer.weight)  # type: ignore[method-assign]
    expected = 10 * torch.linalg.matrix_norm(layer.weight.detach(), 2)
    torch.testing.assert_close(sc.spectral_norm(layer, (4,)), expected)
    layer.forward = lambda x: torch.relu(F.linear(x, layer.weight))  # type: ignore[method-assign]
    with pytest.raises(sc.NotAffineError):
        sc.svds(layer, (4,), 1)


def test_a_global_forward_hook_counts() -> None:
    layer = nn.Linear(4, 4)
    expected = 10 * torch.linalg.matrix_norm(layer.weight.detach(), 2)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: 10 * out)
    try:
        found = sc.spectral_norm(layer, (4,))
    finally:
        handle.remove()
    torch.testing.assert_close(found, expected)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.level.add_(1)
        return self.linear(x)


def test_buffers_that_a_forward_pass_writes_into_stay_as_they_were() -> None:
    layer = Counting()
    sc.svds(layer, (4,), 2)
    assert int(layer.calls) == 0
    assert not layer.level.any()


def test_a_layer_that_works_in_place_does_no_harm() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2).add_(1)

    x = torch.ones(1, 40)
    op = sc.as_operator(InPlace(), (40,))
    torch.testing.assert_close(op.matvec(x), 2 * torch.ones(1, 40))
    torch.testing.assert_close(op.gram(x), 4 * torch.ones(1, 40))
    assert bool((x == 1).all())
    assert float(sc.spectral_norm(InPlace(), (40,))) == pytest.approx(2)


@pytest.mark.parametrize(
    "settings", [{"basis": -3}, {"oversampling": -1}, {"max_matvecs": 0}, {"basis": 2.5}]
)
def test_lanczos_refuses_settings_without_sense(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} of Lanczos must be an integer"):
        sc.Lanczos(**settings)


def test_an_output_that_is_not_real_is_refused() -> None:
    with pytest.raises(ValueError, match=r"complex64, expected a real"):
        sc.svds(torch.fft.fft, (8,), 1)
