"""Batch norms are clamped to their bound, exactly, and nothing else is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import train_batch_norm
from torch import Tensor, nn
from training_cases import (
    EXAMPLE,
    assert_identical,
    sgd,
    small_network,
    snapshot,
    train,
)

from oracle import dense_norm
from spectralclip import NormWarning, attach, find_layers
from spectralclip.methods import ClipBatchNorm

SHAPES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(5), (5,)),
    "1d-sequence": (lambda: nn.BatchNorm1d(5), (5, 4)),
    "2d": (lambda: nn.BatchNorm2d(5), (5, 3, 2)),
    "3d": (lambda: nn.BatchNorm3d(5), (5, 2, 2, 2)),
    "large-eps": (lambda: nn.BatchNorm2d(5, eps=0.5), (5, 3, 2)),
}


def trained(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, tuple[int, ...]]:
    make, in_shape = SHAPES[name]
    norm = make()
    train_batch_norm(norm)
    return nn.Sequential(norm).to(dtype), in_shape


def factors(norm: Any) -> Tensor:
    """By the closed form of the paper's appendix, in float64."""
    deviation = (norm.running_var.double() + norm.eps).sqrt()
    return norm.weight.detach().double() / deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_clamps_what_is_above_the_bound(name: str, dtype: torch.dtype) -> None:
    model, in_shape = trained(name, dtype)
    before = factors(model[0])
    saved = snapshot(model)
    bound = 0.6 * float(before.abs().max())
    assert before.min() < 0 < before.max()
    attachment = attach(
        model, None, torch.zeros(2, *in_shape, dtype=dtype), method=ClipBatchNorm(), max_norm=bound
    )
    assert_identical(model.state_dict(), saved)
    attachment.step()
    after = factors(model[0])
    assert float(after.abs().max()) <= bound * (1 + 1e-15)
    tol = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(after, before.clamp(-bound, bound), rtol=tol, atol=0)
    within = before.abs() <= bound
    assert torch.equal(after[within], before[within])
    assert 0 < int(within.sum()) < 5
    assert attachment.norms()["0"] == pytest.approx(dense_norm(model, in_shape), rel=1e-12)
    changed = {key for key, value in model.state_dict().items() if not value.equal(saved[key])}
    assert changed == {"0.weight"}


def test_a_norm_within_the_bound_is_not_written_to() -> None:
    model, in_shape = trained("2d")
    gamma = model[0].weight
    version, content = gamma._version, gamma.detach().clone()
    bound = dense_norm(model, in_shape) * (1 + 1e-6)
    attachment = attach(
        model, None, torch.zeros(2, *in_shape), method=ClipBatchNorm(), max_norm=bound
    )
    attachment.step()
    assert gamma._version == version
    assert torch.equal(gamma, content)
    assert attachment.norms()["0"] == pytest.approx(dense_norm(model, in_shape), rel=1e-12)


def test_holds_after_every_step_of_training() -> None:
    model = small_network()
    optimizer = sgd(model, lr=0.2)
    attachment = attach(model, optimizer, EXAMPLE, method=ClipBatchNorm(), max_norm=0.9)
    assert list(attachment.layers) == ["1", "4"]
    for index in range(12):
        train(model, optimizer, 1, first=index)
        for name, norm in attachment.norms().items():
            layer = attachment.layers[name]
            truth = dense_norm(layer.modules, layer.in_shapes[0])
            assert norm == pytest.approx(truth, rel=1e-12)
            assert truth <= 0.9 * (1 + 1e-12)
    assert max(attachment.norms().values()) == pytest.approx(0.9, rel=1e-6)


def test_takes_batch_norms_with_a_scale_and_statistics_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3, affine=False),
        nn.Conv2d(3, 3, 3),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.Linear(3 * 36, 4),
    )
    attachment = attach(model, None, EXAMPLE, method=ClipBatchNorm())
    assert list(attachment.layers) == ["4"]
    composed = find_layers(small_network(), EXAMPLE, compose="conv_bn")
    assert not any(ClipBatchNorm().takes(layer) for layer in composed.values())


def test_a_frozen_scale_stays() -> None:
    model, in_shape = trained("2d")
    model[0].weight.requires_grad_(False)
    saved = snapshot(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, torch.zeros(2, *in_shape), method=ClipBatchNorm(), max_norm=1e-3)
    optimizer.step()
    assert_identical(model.state_dict(), saved)


@pytest.mark.parametrize("what", ["weight", "running_var"])
def test_nan_is_reported_once_and_left(what: str) -> None:
    model, in_shape = trained("2d")
    saved = snapshot(model)
    attachment = attach(
        model, None, torch.zeros(2, *in_shape), method=ClipBatchNorm(), max_norm=0.1
    )
    with torch.no_grad():
        getattr(model[0], what)[1] = math.nan
    broken = snapshot(model)
    with pytest.warns(NormWarning, match="ClipBatchNorm on layer '0': .* NaN"):
        attachment.step()
    attachment.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, broken[key], rtol=0, atol=0, equal_nan=True)
    model.load_state_dict(saved)
    attachment.step()
    assert attachment.norms()["0"] <= 0.1
    with torch.no_grad():
        getattr(model[0], what)[1] = math.nan
    with pytest.warns(NormWarning):
        attachment.step()
