"""Runs by Ray."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from engine_cases import Study, cells_of, expected, label

from experiments.engine import ray as ray_engine
from experiments.engine.ray import RayEngine
from experiments.engine.work import Done


@pytest.mark.parametrize("front", ["another machine", socket.gethostname()])
def test_ray_leaves_nothing_on_other_machines(study: Study, front: str) -> None:
    task = study.task(cells_of("figure_fine")[0])
    event = ray_engine._perform(task, MagicMock(), front)
    assert isinstance(event, Done)
    # Here the folder stays until the run is stored.
    assert task.scratch.exists() == (front == socket.gethostname())


def test_without_ray_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match=r"pip install ray, or use --engine local"):
        RayEngine()


@pytest.mark.slow
def test_ray_does_the_same(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # in which Ray leaves a token
    cells = [*cells_of("table_troubles"), *cells_of("figure_fine")]
    summary = study.run(cells, RayEngine(workers=2), retries=1)
    ((key, failure),) = summary.failed.items()
    assert (label(key), failure.line) == ("always-fails", "ValueError: the sum is too large")
    assert "attempt 1 failed: Traceback" in failure.log.read_text()
    totals = {**study.totals("table_troubles"), **study.totals("figure_fine")}
    right = expected(cells)
    del right["always-fails"]
    assert totals == right
    lost = {name: line for name, line, again in study.notes.of("failed") if again}
    assert lost.keys() == {"is-killed", "ends", "fails-once"}
    (record,) = [
        one
        for one in study.store.records("table_troubles", "smoke")
        if one.id.startswith("is-killed")
    ]
    assert (record.run["engine"], record.run["attempts"]) == ("ray", 2)
    assert record.run["resumed"] is True
    assert sorted(study.steps()).count("is killed 1") == 1  # it was not begun from the start
