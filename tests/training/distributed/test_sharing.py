"""Who works on which layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed_cases import Scale, each_method, whole, wrapped_dense
from processes import Processes
from sharding import FSDP
from torch import nn
from training_cases import tower

from spectralclip._training.attach import attach
from spectralclip._training.method import Method


def _work_on_tower(kind: str, method: Method) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    model = tower()
    model = wrapped_dense(model) if kind == "fsdp" else model
    attachment = attach(model, None, torch.zeros(1, 6, 4, 4), method=method, max_norm=1.2)
    attachment.step()
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            attachment.step()
    return counter.get_total_flops(), len(attachment._sharing.mine())


@pytest.mark.sampled(2)
@each_method
@pytest.mark.parametrize("kind", ["plain", FSDP])
def test_work_is_shared(pair: Processes, kind: str, method: Method) -> None:
    (work, layers), (other_work, other_layers) = pair.run(_work_on_tower, kind, method)
    assert layers + other_layers == 20
    assert 0 < max(work, other_work) <= 0.65 * (work + other_work)


def _with_little(kind: str) -> Any:
    """One layer for two processes, and tied ones, which one process has to look after."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    if kind == "fsdp":
        wrapped_dense(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attachment = attach(model, optimizer, torch.zeros(1, 6), method=Scale(), max_norm=0.3)
    optimizer.zero_grad()
    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    return len(attachment._sharing.mine()), attachment.norms(), whole(model[0].weight)


@pytest.mark.parametrize("kind", ["plain", FSDP])
def test_a_process_may_have_nothing_to_do(pair: Processes, kind: str) -> None:
    (mine, norms, weight), (other_mine, other_norms, other_weight) = pair.run(_with_little, kind)
    assert sorted([mine, other_mine]) == [0, 2]
    assert norms == other_norms and torch.equal(weight, other_weight)
    assert torch.linalg.matrix_norm(weight, 2) <= 0.3 * (1 + 1e-5)
