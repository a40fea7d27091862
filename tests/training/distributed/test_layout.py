"""Parts of a weight lie where torch's own chunks do, and other layouts are refused."""

from __future__ import annotations

import re

import pytest
import torch
from distributed_cases import Scale, error_of, wrapped_dense
from processes import Processes
from sharding import SHARDS
from torch import nn

from spectralclip._models.layers import FoundLayer
from spectralclip._training.attach import attach
from spectralclip._training.distributed.layout import Layout, group_of


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("size", range(1, 8))
def test_parts_are_those_of_chunk(size: int, parts: int) -> None:
    whole = torch.arange(2.0 * size).reshape(2, size)
    layout = Layout(1, parts, tuple(range(parts)), (0,) * parts)
    chunks = [*whole.chunk(parts, 1), *[whole[:, :0]] * parts][:parts]
    for rank, chunk in enumerate(chunks):
        assert torch.equal(layout.part(whole, rank), chunk)


def _refused(what: str) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    mesh, method = init_device_mesh("cpu", (2,)), Scale()
    if what == "tensor parallel":
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif what == "flat":
        flat = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        model = nn.Sequential(flat, nn.Linear(8, 8))
    elif what == "does not divide":
        model = wrapped_dense(model)
        method = Scale(divides=False)
    return error_of(lambda: attach(model, None, torch.zeros(1, 8), method=method))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("tensor parallel", "tensor parallel models are not supported"),
        ("flat", "FullyShardedDataParallel, whose weights .*fully_shard instead"),
        pytest.param(
            *("does not divide", "every layer in every process.* DistributedDataParallel"),
            marks=SHARDS,
        ),
    ],
)
def test_unsupported_models_are_refused(pair: Processes, what: str, message: str) -> None:
    for error in pair.run(_refused, what):
        assert error.startswith("ValueError") and re.search(message, error), error


def _tensor_parallel_inside() -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(8, 8))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return error_of(group_of, model, {"0": FoundLayer("0", (model[0],), ((8,),), (), 1)})


@pytest.mark.slow
def test_tensor_parallel_placements_are_refused(four: Processes) -> None:
    for error in four.run(_tensor_parallel_inside):
        assert re.search("ValueError: 'weight' of layer '0' is placed as .*Shard", error), error
        assert "tensor parallel placements are not" in error
