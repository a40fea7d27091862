"""One run of the study by several processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import registry, together
from experiments.experiment import Cell
from experiments.store import Store

ROOT = Path(__file__).parents[2]


def stored(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    (record,) = Store(folder).records("table_resnet", "smoke")
    return dict(record.result), dict(record.run)


def cell() -> Cell:
    cells = registry.cells(["table_resnet"], "smoke")
    return next(one for one in cells if "none" in one.id)


def cell_id() -> str:
    return cell().id


def test_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["table_resnet", cell_id(), "--results", str(tmp_path)]
    assert together.main(args) == 0
    result, run = stored(tmp_path)
    assert run["processes"] == 1 and 0 <= float(str(result["test_accuracy"])) <= 1
    assert "wrote" in capsys.readouterr().out
    assert together.main(args) == 0
    assert "is there" in capsys.readouterr().out
    assert not list((tmp_path / ".work").glob("*/*"))  # no lock, no checkpoint


def test_what_another_process_does_is_left_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    lock = store.lock(cell())
    assert lock is not None
    args = ["table_resnet", cell_id(), "--results", str(tmp_path)]
    assert together.main(args) == 2
    assert re.fullmatch(r"error: .* is being done by process \d+ on .*\n", capsys.readouterr().err)
    assert store.records("table_resnet", "smoke") == []
    lock.release()
    assert together.main(args) == 0


def test_another_process_that_measures_times_is_not_disturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    room = store.room(replace(cell(), config={"alone": True}))
    assert room is not None
    args = ["table_resnet", cell_id(), "--results", str(tmp_path)]
    assert together.main(args) == 2
    told = rf"error: process \d+ on \S+ runs in {tmp_path}, and .* go alone: wait .*\n"
    assert re.fullmatch(told, capsys.readouterr().err)
    room.release()
    assert not list((tmp_path / ".work").glob("**/*.lock"))


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--threads", "0"], "--threads: expected at least 1, got 0"),
        (["--device", "foo"], "device: expected one that torch knows, as cpu or cuda, got 'foo'"),
        (["--results", __file__], "--results: expected a folder for results, got .*: it is a file"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert together.main(["table_resnet", cell_id(), *args]) == 2
    assert re.fullmatch(rf"error: {complaint}\.\n", capsys.readouterr().err)


def test_a_file_that_is_no_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    store.path(cell()).parent.mkdir()
    store.path(cell()).write_text("{}")
    assert together.main(["table_resnet", cell_id(), "--results", str(tmp_path)]) == 2
    assert re.fullmatch(r"error: .* is not a stored run .*\n", capsys.readouterr().err)
    assert not list((tmp_path / ".work").glob("*/*"))


def test_a_run_of_another_scale_is_adopted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    store.save(replace(cell(), scale="laptop"), {"a": 1}, {})
    assert together.main(["table_resnet", cell_id(), "--results", str(tmp_path)]) == 0
    assert "is there" in capsys.readouterr().out
    assert stored(tmp_path)[0] == {"a": 1}


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


def by_two(folder: Path) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    module = ["-m", "experiments.together", "table_resnet", cell_id(), "--results", str(folder)]
    return subprocess.run(
        [*launch, *module],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    lock = Store(tmp_path).lock(cell())
    assert lock is not None
    refused = by_two(tmp_path)
    assert refused.returncode != 0
    assert refused.stderr.count("is being done by process") == 1  # the first tells, for both
    lock.release()
    for words in ("wrote", "is there"):
        done = by_two(tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(words) == 1
    result, run = stored(tmp_path)
    assert run["processes"] == 2
    assert result["epochs"]
