"""Audits by several processes: the same answer, whoever examines a layer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import Processes
from sharding import SHARDS
from torch import Tensor, nn
from zoo import BY_NAME

from spectralclip._audit import Audit, audit


def plainly(name: str, workers: int = 1) -> Audit:
    specimen = BY_NAME[name]
    return audit(specimen.model(), specimen.inputs(), workers=workers, lipschitz=False)


def same(one: Audit, other: Audit) -> bool:
    """But for when they were made, and how long that took."""
    return replace(one, created="", environment={}) == replace(other, created="", environment={})


# --- Processes that the audit starts ---------------------------------------------------------


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the processes have: how many threads there are decides the rounding."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Local(nn.Linear):
    """A layer that can be sent nowhere, since it holds a function made on the spot."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.scale = lambda: 2.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale()


def test_processes_find_the_same_and_move_no_weights() -> None:
    model = nn.Sequential(BY_NAME["vgg"].model(), nn.ReLU(), nn.Linear(10, 6), nn.ReLU(), Local())
    with torch.no_grad():
        model[2].weight[0, 0] = torch.inf
    inputs = BY_NAME["vgg"].inputs()
    alone = audit(model, inputs, lipschitz=False)
    assert "4" in {layer.name for layer in alone.layers} and "2" in alone.skipped
    told: list[str] = []
    together = audit(
        model,
        inputs,
        workers=2,
        lipschitz=False,
        progress=lambda done, total, name: told.append(name),
    )
    assert same(alone, together)
    assert sorted(told) == sorted([layer.name for layer in alone.layers] + ["2"])
    assert not any(tensor.is_shared() for tensor in model.state_dict().values())


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from spectralclip._audit import audit\n"
        "layers = [torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)]\n"
        "model = torch.nn.Sequential(*layers)\n"
        "audit(model, torch.zeros(1, 3), workers=2, lipschitz=False)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "add one, since each process imports the script" in done.stderr


# --- Ranks -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks() -> Iterator[Processes]:
    processes = Processes(2)
    yield processes
    processes.close()


def by_ranks(name: str) -> tuple[Audit, list[str]]:
    specimen, told = BY_NAME[name], []
    found = audit(
        specimen.model(),
        specimen.inputs(),
        workers="ranks",
        progress=lambda done, total, layer: told.append(layer),
    )
    return found, told


@pytest.mark.slow
def test_ranks_share_the_layers_and_return_the_same(ranks: Processes) -> None:
    (first, told), (second, silent) = ranks.run(by_ranks, "resnet")
    assert first == second  # to the second it took
    assert first.layers == plainly("resnet").layers
    assert first.lipschitz is not None and first.lipschitz.upper > first.lipschitz.lower > 0
    assert 0 < len(told) <= len(first.layers) // 2 + 2 and silent == []


def breaking() -> str:
    model = nn.Linear(3, 3)
    try:
        audit(model, torch.zeros(1, 4), workers="ranks")
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def test_errors_are_raised_on_each_rank(ranks: Processes) -> None:
    one, other = ranks.run(breaking)
    assert one == other and "shapes cannot be multiplied" in one


def sharded() -> tuple[Audit, Audit, str]:
    from torch.distributed.fsdp import fully_shard

    specimen = BY_NAME["vgg"]
    whole = plainly("vgg")
    model = specimen.model()
    for module in model:
        if any(True for _ in module.parameters()):
            fully_shard(module)
    fully_shard(model)
    found = audit(model, specimen.inputs(), lipschitz=False)
    with pytest.raises(ValueError, match="workers=1, on every rank") as error:
        audit(model, specimen.inputs(), workers="ranks")
    return whole, found, str(error.value)


@pytest.mark.slow
@SHARDS
def test_sharded_models_are_audited_as_if_they_were_whole(ranks: Processes) -> None:
    for whole, found, _ in ranks.run(sharded):
        assert same(whole, found)
