"""Parts of parameters among several processes: one owner for all, and equal weights after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed_cases import OPTIMIZERS, bare, same, whole
from processes import Processes
from sharding import FSDP
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spectralclip import attach
from spectralclip.methods import SpectralClip

BOUND = 0.5


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.gru, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)
        self.attn = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gru(x)[0]
        return self.out((x + self.attn(x, x, x)[0])[:, -1])  # type: ignore[no-any-return]


def _wrapped(kind: str) -> nn.Module:
    model = Recurrent()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.gru)
        fully_shard(model)
    return model


def _trained(kind: str, name: str, compose: Any = "none") -> Any:
    model = _wrapped(kind)
    optimizer = OPTIMIZERS[name](model.parameters())
    method = SpectralClip(compose=compose)
    attachment = attach(model, optimizer, torch.zeros(1, 3, 4), method=method, max_norm=BOUND)
    for step in range(6):
        x = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (10 * model(x).sum(1) - 10 * x.sum((1, 2))).square().mean().backward()
        optimizer.step()
    found = {n: whole(p) for n, p in bare(model).named_parameters()}
    for n, p in bare(model).named_parameters():
        state = optimizer.state[p]
        found[f"momentum of {n}"] = whole(state.get("momentum_buffer", state.get("exp_avg")))
    return found, sorted(attachment.layers), sorted(attachment.state_dict()["layers"])


@pytest.mark.filterwarnings("ignore:Within these bounds")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_as_in_one_process(pair: Processes, kind: str, optimizer: str) -> None:
    (weights, layers, states), (others, *_) = pair.run(_trained, kind, optimizer)
    assert same(weights, others)
    assert layers == states and len(layers) == 11
    alone, *_ = _trained("alone", optimizer)
    for name, value in alone.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=2e-5)
    for name in ("gru.weight_ih_l0", "gru.weight_hh_l0", "attn.in_proj_weight"):
        norms = [float(torch.linalg.matrix_norm(part, 2)) for part in weights[name].split(6)]
        assert max(norms) <= 1.02 * BOUND and max(norms) > 0.9 * BOUND


class Short(nn.Module):
    """Without attention, which has no bound."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.gru, self.out = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)
        nn.init.constant_(self.gru.bias_hh_l0, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x)[0][:, -1])  # type: ignore[no-any-return]


def _held_as_one(kind: str) -> Any:
    """Weights and bounds under a bound of the network, in training and at its end."""
    model = DistributedDataParallel(Short()) if kind == "ddp" else Short()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    attachment = attach(model, optimizer, torch.zeros(1, 3, 4), max_lipschitz=3.0)
    bounds = dict(attachment.max_norms)
    for step in range(5):
        x = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (10 * model(x).sum(1) - 10 * x.sum((1, 2))).square().mean().backward()
        optimizer.step()
    found = {n: whole(p) for n, p in bare(model).named_parameters()}
    attachment.finalize(certify=True)
    assert attachment.network_bound is not None
    return found, bounds, attachment.network_bound.upper


def test_the_bias_of_a_gru_is_held_as_in_one_process(pair: Processes) -> None:
    (weights, bounds, proved), (others, *_) = pair.run(_held_as_one, "ddp")
    assert same(weights, others)
    alone, its_bounds, _ = _held_as_one("alone")
    assert bounds == pytest.approx(its_bounds)
    for name, value in alone.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=2e-5)
    bias, limit = weights["gru.bias_hh_l0"].abs(), bounds["gru.weight_hh_l0[new]"]
    assert 0.8 * limit < bias[10:].max() <= 1.000001 * limit < 1.0 < bias[:10].max()
    assert proved <= 3.0


@pytest.mark.filterwarnings("ignore:Within these bounds")
@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_heads_as_in_one_process(pair: Processes, kind: str) -> None:
    (weights, layers, states), (others, *_) = pair.run(_trained, kind, "adamw", "heads")
    assert same(weights, others)
    assert layers == states and "attn[1].value" in layers
    alone, *_ = _trained("alone", "adamw", "heads")
    for name, value in alone.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=2e-5)
