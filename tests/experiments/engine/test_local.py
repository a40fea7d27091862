"""Processes of this machine: their threads and GPUs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time

import psutil
import pytest
import torch
from engine_cases import PATIENCE, Study, cells_of, is_worker

from experiments.engine.local import KEEPING_MEMORY, LocalEngine


def environments(engine: LocalEngine) -> list[dict[str, str]]:
    """What the processes were started with: it is there long before they have loaded torch."""
    processes = [psutil.Process(worker.process.pid) for worker in engine._workers]
    end = time.monotonic() + PATIENCE
    while not all(map(is_worker, processes)):  # until then they are copies of this process
        assert time.monotonic() < end
        time.sleep(0.01)
    return [process.environ() for process in processes]


def test_processes_have_the_threads_they_were_given(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    engine = LocalEngine(workers=1, threads=3)
    try:
        engine.start(study.task(cells_of("figure_slow", "laptop")[0]))
        (environment,) = environments(engine)
    finally:
        engine.close()
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("3", "3")
    assert os.environ["OMP_NUM_THREADS"] == "5"
    assert "MKL_NUM_THREADS" not in os.environ
    assert KEEPING_MEMORY.items() <= environment.items()
    assert not KEEPING_MEMORY.keys() & os.environ.keys()


FAULTS = """
import resource, torch
for _ in range(60):  # in the first of which memory that is kept finds its place
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    freed = torch.ones(1 << 23)
    del freed
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep memory anyway")
def test_memory_that_is_freed_is_kept_for_the_next_step() -> None:
    command = [sys.executable, "-c", FAULTS]
    plain = {name: value for name, value in os.environ.items() if name not in KEEPING_MEMORY}
    again, kept = (
        int(subprocess.run(command, env=one, check=True, capture_output=True).stdout)
        for one in (plain, {**plain, **KEEPING_MEMORY})
    )
    assert again > 5_000  # 32 MB, in pages of 4 KB
    assert kept < 100


@pytest.mark.parametrize(
    ("visible", "workers", "expected"),
    [(None, None, ["0", "1"]), ("5,GPU-7", 3, ["5", "5", "GPU-7"])],
)
def test_processes_divide_the_gpus(
    study: Study,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    workers: int | None,
    expected: list[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    engine = LocalEngine(workers, device="cuda")
    assert engine.slots == len(expected)
    try:
        for cell in cells_of("figure_slow")[: engine.slots]:
            engine.start(study.task(cell))
        found = [each["CUDA_VISIBLE_DEVICES"] for each in environments(engine)]
    finally:
        engine.close()
    assert sorted(found) == expected
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="expected a GPU for 'cuda', got none"):
        LocalEngine(device="cuda")
