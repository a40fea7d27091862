"""Batch norms alone, whose singular values are their factors."""

from __future__ import annotations

import pytest
import torch
from engine_stages import norms, run, stage_of
from torch import Tensor, nn

from spectralclip._training.engine.factors import Factors


def batch_norm(weights: list[float], variances: list[float]) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(len(weights)).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(weights))
        norm.running_var.copy_(torch.tensor(variances))
    return norm


def scales(norm: nn.BatchNorm2d) -> Tensor:
    return norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()


def test_each_factor_is_clamped_by_itself() -> None:
    norm = batch_norm([2.0, -3.0, 0.4, 0.0], [1.0, 4.0, 0.25, 2.0])
    before = scales(norm)
    stage = stage_of(norm, (4, 5, 5), bound=1.2)
    assert [type(group) for group in stage.groups] == [Factors]
    assert float(norms(stage)) == pytest.approx(float(before.abs().max()), rel=1e-5)
    run(stage)
    target = 0.99 * 1.2
    torch.testing.assert_close(scales(norm), before.clamp(-target, target), rtol=1e-5, atol=0)


def test_what_is_within_stays_bit_for_bit() -> None:
    norm = batch_norm([0.3, -0.9, 0.1], [1.0, 1.0, 1.0])
    before = norm.weight.detach().clone()
    run(stage_of(norm, (3, 5, 5)))
    assert torch.equal(norm.weight, before)
