"""Runs beside each other end with the process that asked for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.runs import ROOT

COMMAND = """
import functools, os, sys, time
from pathlib import Path
from benchmarks.training.pool import outcomes

def work(place, folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(300)

if __name__ == "__main__":
    list(outcomes(functools.partial(work, folder=sys.argv[1]), [0, 1], 2))
"""


def test_no_run_outlives_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    script, folder = tmp_path / "command.py", tmp_path / "started"
    script.write_text(COMMAND)
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    asking = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    workers = []
    for _ in range(600):
        workers = [int(file.name) for file in folder.iterdir()]
        if len(workers) == 2:
            break
        time.sleep(0.1)
    assert len(workers) == 2
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    for _ in range(300):
        if not any(_runs(worker) for worker in workers):
            return
        time.sleep(0.1)
    raise AssertionError("the runs went on")


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
