"""Almost orthogonal layers: within the bound, loose, and at every size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from orthogonal_cases import LAYERS, AOLReparametrizer, attached, needs_package
from torch import nn
from training_cases import EXAMPLE, sgd, small_network, train, true_norms

from oracle import dense_matrix, dense_norm
from spectralclip import FoundLayer, attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines.aol import AOL
from spectralclip.methods.baselines.lot import LOT


def test_aol_scales_by_the_sums_of_the_gram_matrix() -> None:
    """A side of seven is enough for all five by five shifts of a 3x3 kernel to be apart."""
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", bias=False).double()
    matrix = dense_matrix(conv, (3, 7, 7))
    factors = np.abs(matrix.T @ matrix).sum(0) ** -0.5
    model, _ = attached(AOL(), conv, (3, 7, 7), max_norm=0.9)
    np.testing.assert_allclose(dense_matrix(model, (3, 7, 7)), 0.9 * matrix * factors, atol=1e-12)


@needs_package
@pytest.mark.parametrize("groups", [1, 2])
def test_aol_of_the_package(groups: int) -> None:
    """It scales the outputs of a kernel: those of the transposed one are the inputs."""
    weight = torch.randn(4, 4 // groups, 3, 3)
    turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(-1, -2)
    with torch.no_grad():
        scaled = AOLReparametrizer(4, groups)(turned)
    expected = scaled.flip(-1, -2).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups)
    with torch.no_grad():
        conv.weight.copy_(weight)
    model, attachment = attached(AOL(), conv, (4, 6, 6))
    attachment.remove()
    torch.testing.assert_close(model[0].weight.float().detach(), expected, rtol=1e-4, atol=1e-6)


def test_aol_is_loose_for_random_kernels() -> None:
    model, _ = attached(AOL(), nn.Conv2d(16, 16, 3, padding=1), (16, 8, 8))
    assert 0.1 < dense_norm(model, (16, 8, 8)) < 0.5


AOL_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{key: made for key, made in LAYERS.items() if key != "reflect"},
    "valid": (lambda: nn.Conv2d(2, 3, 3), (2, 7, 5)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "circular dilated": (
        lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"),
        (2, 5, 6),
    ),
    "odd stride": (lambda: nn.Conv2d(2, 3, 5, padding=2, stride=3), (2, 7, 8)),
}


@pytest.mark.parametrize("kind", AOL_LAYERS)
def test_aol_is_within_its_bound(kind: str) -> None:
    make, in_shape = AOL_LAYERS[kind]
    layer = make().double()
    estimate = AOL.estimate(layer, in_shape)
    assert dense_norm(layer, in_shape) <= estimate * (1 + 1e-12)
    geometry = repr(layer)
    model, attachment = attached(AOL(), layer, in_shape, max_norm=0.8)
    swapped = dense_matrix(model, in_shape)
    assert np.linalg.norm(swapped, 2) <= 0.8 * (1 + 1e-12)
    attachment.remove()
    assert repr(model[0]) == geometry
    np.testing.assert_allclose(dense_matrix(model, in_shape), swapped, rtol=0, atol=1e-14)


def test_aol_holds_at_every_size() -> None:
    model, _ = attached(AOL(), nn.Conv2d(1, 1, 3, padding=1, bias=False), (1, 4, 4))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    norms = [dense_norm(model, (1, n, n)) for n in (4, 8, 20)]
    assert norms == sorted(norms)
    assert 0.95 < norms[-1] <= 1


def test_aol_leaves_orthogonal_layers_alone() -> None:
    layer = nn.Linear(4, 4, bias=False).double()
    nn.init.orthogonal_(layer.weight)
    mixed = dense_matrix(layer, (4,))
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4)[[2, 0, 3, 1]])
    before = dense_matrix(layer, (4,))
    assert AOL.estimate(layer, (4,)) == pytest.approx(1)
    model, _ = attached(AOL(), layer, (4,))
    np.testing.assert_allclose(dense_matrix(model, (4,)), before)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(mixed))
    np.testing.assert_allclose(dense_matrix(model, (4,)), mixed, atol=1e-12)


def test_a_layer_of_zeros() -> None:
    for method in (AOL(), LOT()):
        conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        nn.init.zeros_(conv.weight)
        model, _ = attached(method, conv, (2, 4, 4))
        y = model(torch.randn(1, 2, 4, 4).double())
        assert not bool(y.any())
        y.sum().backward()
        assert bool(torch.isfinite(conv.weight.grad).all()), method


def test_aol_refuses_borders_that_repeat_pixels() -> None:
    for mode in ("reflect", "replicate"):
        conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)
        assert not AOL().takes(FoundLayer("", (conv,), ((2, 6, 6),), (), 1))
        with pytest.raises(OutsideDomain, match=f"AOL is not defined for Conv2d.*{mode}"):
            AOL.estimate(conv, (2, 6, 6))


def test_aol_refuses_borders_that_repeat_outputs() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular")
    assert not AOL().takes(FoundLayer("", (conv,), ((2, 5, 5),), (), 1))
    with pytest.raises(OutsideDomain, match=r"circular padding of \(2, 2\).*repeats outputs"):
        AOL.estimate(conv, (2, 5, 5))
    with pytest.raises(ValueError, match="AOL found no layer"):
        attach(nn.Sequential(conv), None, torch.zeros(1, 2, 5, 5), method=AOL())
    same = nn.Conv2d(2, 3, 4, padding="same", dilation=3, padding_mode="circular")
    assert AOL().takes(FoundLayer("", (same,), ((2, 12, 12),), (), 1))


def test_aol_has_no_estimate_of_weights_that_are_not_finite() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.data[1, 1] = math.nan
    with pytest.raises(ValueError, match="AOL has no estimate of the norm of Linear"):
        AOL.estimate(layer, (3,))


def test_why_aol_refuses_them() -> None:
    """A shift by one pixel reads the first one twice."""
    norms = {}
    for mode, width in (("zeros", 2), ("circular", 1), ("circular", 2), ("replicate", 1)):
        conv = nn.Conv1d(1, 1, 3, padding=width, padding_mode=mode, bias=False).double()
        with torch.no_grad():
            conv.weight.copy_(torch.tensor([1.0, 0, 0]))
        norms[f"{mode} {width}"] = dense_norm([conv], (1, 8))
    twice = math.sqrt(2)
    expected = {"zeros 2": 1, "circular 1": 1, "circular 2": twice, "replicate 1": twice}
    assert norms == pytest.approx(expected)


def test_aol_goes_on_training_after_it_was_removed() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=AOL(), max_norm=0.5)
    assert list(attachment.layers) == ["0", "6", "9"]
    train(model, optimizer, 2)
    results = attachment.finalize(certify=True)
    assert max(results[key].norm_after for key in ("0", "6", "9")) <= 0.5
    assert max(true_norms(attachment).values()) <= 0.5
    train(model, optimizer, 2)
