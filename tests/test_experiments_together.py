"""One run of the study by several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import registry, together
from experiments.store import Store

ROOT = Path(__file__).parents[1]


def stored(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    (record,) = Store(folder).records("table_resnet", "smoke")
    return dict(record.result), dict(record.run)


def cell_id() -> str:
    cells = registry.cells(["table_resnet"], "smoke")
    return next(cell.id for cell in cells if "none" in cell.id)


def test_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["table_resnet", cell_id(), "--results", str(tmp_path)]
    assert together.main(args) == 0
    result, run = stored(tmp_path)
    assert run["processes"] == 1 and 0 <= float(str(result["test_accuracy"])) <= 1
    assert "wrote" in capsys.readouterr().out
    assert together.main(args) == 0
    assert "is there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["table_resnet", "*"], "expected a pattern that one of"),
        (["table_resnet", "nothing"], "which 0 have"),
        (["table_9", "*"], "expected one of"),
    ],
)
def test_which_run_has_to_be_clear(
    args: list[str], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert together.main(args) == 2
    assert match in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    module = ["-m", "experiments.together", "table_resnet", cell_id(), "--results", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, *module], check=True, cwd=ROOT, env=environment, timeout=300)
    result, run = stored(tmp_path)
    assert run["processes"] == 2
    assert result["epochs"]
