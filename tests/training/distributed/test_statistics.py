"""Running statistics are those of the first process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_cases import BOUND, Run, Scale, bare, network, whole
from processes import Processes
from sharding import FSDP

from oracle import dense_norm


def _with_statistics(kind: str) -> Any:
    run = Run(kind, "sgd", Scale(compose="conv_bn"), norm=True).train(0, 2, apart=True)
    block, rank = bare(run.model)[1], dist.get_rank()
    assert ("1.0+1.1" in run.attachment._sharing.mine()) == (rank == 1)
    with torch.no_grad():
        block[1].running_var.fill_(0.01 if rank == 0 else 100.0)
    before, held = block[1].running_var.clone(), block[1].running_var
    run.attachment.step()
    untouched = block[1].running_var is held and torch.equal(held, before)
    return untouched, run.attachment.norms()["1.0+1.1"], [whole(p) for p in block.parameters()]


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_statistics_of_the_first_rank_count(pair: Processes, kind: str) -> None:
    for untouched, norm, (weight, bias, gamma, beta) in pair.run(_with_statistics, kind):
        assert untouched
        block = network(norm=True)[1][:2]
        values = {"0.weight": weight, "0.bias": bias, "1.weight": gamma, "1.bias": beta}
        block.load_state_dict(values, strict=False)
        block[1].running_var.fill_(0.01)
        true = dense_norm([block[0], block[1]], (5, 8, 8))
        assert norm == pytest.approx(true, rel=1e-4)
        assert true <= BOUND * (1 + 1e-5)
