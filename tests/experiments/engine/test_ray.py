"""Runs by Ray."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
from engine_cases import PATIENCE, Study, cells_of, expected, label
from fake_study.adding import config

from experiments.engine import ray as ray_engine
from experiments.engine.ray import RayEngine
from experiments.engine.work import Done
from experiments.experiment import Cell


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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder in which Ray leaves a token: one for all, since a process reads it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_ray_does_the_same(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
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


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_node_that_is_lost_costs_no_run(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head and a worker node, each with processes of its own; the worker node is killed."""
    ray = pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    slow = [config(f"slow {n}", n, steps=10, pause=0.3) for n in range(6)]
    cells = [Cell("figure_fine", "smoke", one) for one in slow]
    cluster = utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        worker = cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        engine = RayEngine()
        assert engine.slots == 2

        def lose_the_worker() -> None:
            while len({line.rpartition(" ")[0] for line in study.steps()}) < 2:
                time.sleep(0.1)
            time.sleep(1.0)  # both nodes are in the middle of a run
            cluster.remove_node(worker, allow_graceful=False)

        killer = threading.Thread(target=lose_the_worker, daemon=True)
        killer.start()
        summary = study.run(cells, engine, retries=2)
        killer.join(PATIENCE)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert not summary.failed and not summary.left
    assert study.totals("figure_fine") == expected(cells)
    lost = {name for name, _, again in study.notes.of("failed") if again}
    assert len(lost) == 1
    # No step is done again but the one that the lost run was in the middle of.
    again = {step: n for step, n in Counter(study.steps()).items() if n > 1}
    assert len(again) <= 1 and {step.rpartition(" ")[0].replace(" ", "-") for step in again} <= lost
    attempts = {label(r.id): r.run["attempts"] for r in study.store.records("figure_fine", "smoke")}
    assert {name for name, count in attempts.items() if count > 1} == lost
