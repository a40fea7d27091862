"""FastClip raises norms that are below the bound, as the published code does, if asked to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from oracle import dense_norm
from spectralclip import attach, methods


def _of_norm(layer: nn.Module, shape: tuple[int, ...], norm: float) -> nn.Module:
    """The layer, scaled to a norm by the singular values of its dense matrix."""
    with torch.no_grad():
        layer.get_parameter("weight").mul_(norm / dense_norm(layer, shape))
    return layer


SMALL = {
    "dense": (lambda: nn.Linear(8, 5), (8,), methods.FastClip(lr=1.0, every=1)),
    "convolution": (
        lambda: nn.Conv2d(2, 3, 3, padding=1),
        (2, 6, 6),
        methods.FastClip(lr=0.1, every=1, inner_steps=5),
    ),
    "published": (
        lambda: nn.Conv2d(2, 3, 3, padding=1),
        (2, 6, 6),
        dataclasses.replace(methods.FastClip.published(raises=True), every=1),
    ),
}


@pytest.mark.parametrize("which", SMALL)
@pytest.mark.parametrize("norm", [0.5, 0.93])
def test_norms_below_the_bound_are_raised_if_asked_for(which: str, norm: float) -> None:
    make, shape, method = SMALL[which]
    torch.manual_seed(0)
    layer = _of_norm(make(), shape, norm)
    # So many that the norm is known: one that is taken for too small is raised too far.
    method = dataclasses.replace(method, raises=True, power_iterations=100)
    attachment = attach(layer, None, torch.zeros(1, *shape), method=method, max_norm=1.0)
    for _ in range(40):
        attachment.step()
    # Above 0.95 norms are left alone.
    assert 0.949 < dense_norm(layer, shape) < 1.01


@pytest.mark.parametrize("which", SMALL)
@pytest.mark.parametrize(("norm", "raises"), [(0.5, False), (0.96, True)])
def test_norms_below_the_bound_are_left_alone_else(which: str, norm: float, raises: bool) -> None:
    make, shape, method = SMALL[which]
    torch.manual_seed(0)
    layer = _of_norm(make(), shape, norm)
    before = layer.get_parameter("weight").detach().clone()
    attachment = attach(
        layer,
        None,
        torch.zeros(1, *shape),
        method=dataclasses.replace(method, raises=raises, power_iterations=50),
        max_norm=1.0,
    )
    for _ in range(10):
        attachment.step()
    assert torch.equal(layer.get_parameter("weight"), before)


def test_a_dense_layer_is_raised_in_one_round_to_the_bound() -> None:
    """With a step of length 1 the leading `s u v^T` becomes `c u v^T`, and nothing else moves."""
    values = torch.tensor([0.5, 0.2, 0.1], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    u, v = (torch.linalg.qr(torch.randn(3, 3, generator=generator).double())[0] for _ in range(2))
    layer = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(u @ torch.diag(values) @ v.T)
    method = methods.FastClip(lr=1.0, every=1, power_iterations=400, shift=0.0, raises=True)
    attach(layer, None, torch.zeros(1, 3, dtype=torch.float64), method=method, max_norm=1.0).step()
    found = torch.linalg.svdvals(layer.weight.detach())
    expected = torch.tensor([1.0, 0.2, 0.1], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_nothing_cannot_be_raised() -> None:
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    method = methods.FastClip(lr=1.0, every=1, raises=True)
    attach(layer, None, torch.zeros(1, 3), method=method, max_norm=1.0).step()
    assert not bool(layer.weight.any())
    wrong: Any = "yes"
    with pytest.raises(TypeError, match="raises must be True or False"):
        methods.FastClip(raises=wrong)
