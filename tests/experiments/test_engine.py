"""Runs by processes and by Ray: killed, failing, interrupted, and done elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import torch
from fake_study.adding import config, numbers

from experiments import registry
from experiments.engine import ray as ray_engine
from experiments.engine import schedule, surroundings, work
from experiments.engine.device import require_device
from experiments.engine.local import LocalEngine
from experiments.engine.ray import RayEngine
from experiments.engine.work import (
    Done,
    Engine,
    Event,
    Failed,
    Task,
    error_line,
    now_and_then,
    perform,
)
from experiments.experiment import Cell, Experiment, Scale
from experiments.store import Store

PATIENCE = 60  # seconds; what takes longer hangs


class Notes:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.waits = threading.Event()
        self.interrupt_at = ""

    def __enter__(self) -> Notes:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def began(self, key: str, attempt: int) -> None:
        self.lines.append(("began", label(key), attempt))

    def said(self, key: str, share: float, words: str) -> None:
        self.lines.append(("said", label(key), share, words))
        # What comes soon after what was said is left out, so it may be a later one.
        if self.interrupt_at and words >= self.interrupt_at:
            raise KeyboardInterrupt

    def found(self, key: str) -> None:
        self.lines.append(("found", label(key)))

    def elsewhere(self, key: str, owner: str) -> None:
        self.lines.append(("elsewhere", label(key), owner))
        self.waits.set()

    def stored(self, key: str, seconds: float) -> None:
        self.lines.append(("stored", label(key)))

    def failed(self, key: str, line: str, *, again: bool) -> None:
        self.lines.append(("failed", label(key), line, again))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [rest for first, *rest in self.lines if first == kind]  # type: ignore[misc]


def label(key: str) -> str:
    """ "figure_fine/fine-1-0123456789" as "fine-1"."""
    return key.rpartition("/")[2].rpartition("-")[0]


class Study:
    """The fake study, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "results")
        self.trace = folder / "trace"
        self.notes = Notes()

    def run(
        self,
        cells: Sequence[Cell],
        engine: Engine | None = None,
        retries: int = 2,
        note: Callable[[str], None] = lambda text: None,
    ) -> schedule.Summary:
        engine = engine or LocalEngine(workers=2)
        return schedule.run(
            cells, self.store, engine, self.notes, self.task, retries=retries, note=note
        )

    def task(self, cell: Cell) -> Task:
        return Task("fake_study", cell, None, self.store.scratch(cell), self.store.log(cell))

    def totals(self, experiment: str, scale: Scale = "smoke") -> dict[str, int]:
        records = self.store.records(experiment, scale)
        return {label(record.id): record.result["total"] for record in records}

    def steps(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def leftovers(self) -> list[str]:
        work = self.store.folder / ".work"
        return sorted(str(path.relative_to(work)) for path in work.glob("*/*"))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("FAKE_STUDY_TRACE", str(tmp_path / "trace"))
    return Study(tmp_path)


def cells_of(name: str, scale: Scale = "smoke") -> list[Cell]:
    return registry.cells([name], scale, "fake_study")


def expected(cells: Sequence[Cell]) -> dict[str, int]:
    return {label(f"/{cell.id}"): sum(numbers(cell.config)) for cell in cells}


def test_runs_are_done_and_stored_once(study: Study) -> None:
    cells = cells_of("figure_fine")
    summary = study.run(cells)
    assert len(summary.stored) == 3
    assert study.totals("figure_fine") == expected(cells)
    assert study.leftovers() == []
    assert sorted(study.steps()) == sorted(
        f"Fine {n} {step}" for n in range(3) for step in range(4)
    )
    again = study.run(cells)
    assert (len(again.found), again.stored, again.failed) == (3, [], {})
    assert len(study.steps()) == 12


def test_what_is_noted_of_a_run(study: Study) -> None:
    study.run(cells_of("figure_fine")[:1], LocalEngine(workers=1, threads=3))
    (record,) = study.store.records("figure_fine", "smoke")
    # The package need not say for which hardware it was built.
    assert torch.__version__.startswith(record.run["versions"]["torch"])
    assert record.run["machine"]["cores"] == os.cpu_count()
    assert (record.run["engine"], record.run["attempts"]) == ("local", 1)
    assert record.run["resumed"] is False
    assert record.run["seconds"] >= 0
    assert study.notes.of("said")[0] == ["fine-0", 0.25, "step 0"]


class Recorder:
    """An engine that does each run in the next look at it, and notes which ran side by side."""

    name, slots = "recorder", 3

    def __init__(self) -> None:
        self.running: list[Task] = []
        self.together: list[set[int]] = []

    def start(self, task: Task) -> None:
        self.running.append(task)
        self.together.append({one.cell.config["seed"] for one in self.running})

    def events(self, seconds: float) -> list[Event]:
        return [perform(self.running.pop(0), lambda share, words: None)]

    def close(self) -> None:
        assert not self.running


class Patient(Recorder):
    """The same, where there may be nothing to do."""

    def events(self, seconds: float) -> list[Event]:
        time.sleep(seconds)
        return super().events(seconds) if self.running else []


def test_runs_that_measure_times_go_alone_and_last(study: Study) -> None:
    quick, *others = cells_of("figure_fine")
    timed = Cell(quick.experiment, quick.scale, {**quick.config, "seed": 77, "alone": True})
    also = Cell(quick.experiment, quick.scale, {**quick.config, "seed": 78, "alone": True})
    engine = Recorder()
    study.run([timed, quick, *others, also], engine)
    assert engine.together[-2:] == [{77}, {78}]
    assert max(map(len, engine.together)) == min(3, 1 + len(others))
    assert all(not seeds & {77, 78} for seeds in engine.together[:-2])


@pytest.mark.parametrize("which", ["what measures", "what would disturb"])
def test_two_commands_leave_alone_what_measures_times(
    study: Study, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(schedule, "_TICK", 0.01)
    quick = cells_of("figure_fine")[0]
    timed = replace(quick, config={**quick.config, "label": "timed", "alone": True})
    wanted, other = (timed, quick) if which == "what measures" else (quick, timed)
    room = study.store.room(other)
    assert room is not None
    said: list[str] = []
    thread = threading.Thread(target=lambda: study.run([wanted], Patient(), note=said.append))
    thread.start()
    time.sleep(0.3)
    assert (study.steps(), len(said)) == ([], 1)
    owner = rf"process {os.getpid()} on \S+"
    assert re.fullmatch(rf"figure_fine/{wanted.id} waits for {owner}: .* go alone\.", said[0])
    room.release()
    thread.join(PATIENCE)
    assert study.totals("figure_fine") == expected([wanted])
    assert not list((study.store.folder / ".work").glob("*.lock"))


def test_a_configuration_of_another_scale_is_not_run_again(study: Study) -> None:
    study.run(cells_of("figure_fine", "laptop"), Recorder())
    before = len(study.steps())
    cells = cells_of("figure_fine", "paper")
    summary = study.run(cells, Recorder())
    assert ([*map(label, summary.found)], [*map(label, summary.stored)]) == (
        ["large"],
        ["paper-only"],
    )
    assert study.totals("figure_fine", "paper") == expected(cells)
    assert study.steps()[before:] == [f"paper only {step}" for step in range(5)]


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        ("is-killed", "the process was killed by SIGKILL"),
        # Goes the same way; it is among the runs of all by the command line, too: see test_cli.
        pytest.param("ends", "the process ended with exit code 7", marks=pytest.mark.slow),
        ("fails-once", "RuntimeError: only once"),
    ],
)
def test_a_run_that_is_lost_goes_on_from_its_checkpoint(
    study: Study, trouble: str, line: str
) -> None:
    cells = [cell for cell in cells_of("table_troubles") if cell.id.startswith(trouble)]
    summary = study.run(cells)
    assert summary.failed == {}
    assert study.notes.of("failed") == [[trouble, line, True]]
    assert study.totals("table_troubles") == expected(cells)
    (record,) = study.store.records("table_troubles", "smoke")
    assert (record.run["attempts"], record.run["resumed"]) == (2, True)
    words = trouble.replace("-", " ")
    assert study.steps() == [f"{words} {step}" for step in (0, 1, 2, 2, 3)]
    assert study.leftovers() == []


def test_a_run_that_always_fails_stops_no_other(study: Study) -> None:
    # Those that are killed are beside it where the command line runs all: see test_cli.
    troubles = [cell for cell in cells_of("table_troubles") if "fails" in cell.id]
    cells = [*troubles, *cells_of("figure_fine")]
    summary = study.run(cells, retries=1)
    ((key, failure),) = summary.failed.items()
    assert label(key) == "always-fails"
    assert (failure.line, failure.attempts) == ("ValueError: the sum is too large", 1)
    log = failure.log.read_text()
    assert log.count("trouble ahead: always fails") == 1  # what it has printed
    assert "attempt 1 failed: Traceback" in log
    assert len(summary.stored) == 4
    totals = {**study.totals("table_troubles"), **study.totals("figure_fine")}
    right = expected(cells)
    del right["always-fails"]
    assert totals == right
    kept = {Path(name).suffix for name in study.leftovers()}
    assert kept == {"", ".log"}  # what is needed to go on, but no lock


@pytest.mark.parametrize(
    ("error", "attempts"), [(RuntimeError("no memory"), 3), (ValueError("a damaged file"), 1)]
)
def test_only_what_a_retry_may_mend_is_tried_again(
    study: Study, monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int
) -> None:
    def run(config: Any, context: Any) -> Any:
        raise error

    experiment = replace(registry.load("figure_fine", "fake_study"), run=run)
    monkeypatch.setattr(work.registry, "load", lambda name, package: experiment)
    ((_, failure),) = study.run(
        [Cell("figure_fine", "smoke", config("a"))], Recorder()
    ).failed.items()
    assert failure.attempts == attempts
    assert failure.log.read_text().count(f"{type(error).__name__}: {error}\n") == attempts
    assert len(study.notes.of("began")) == attempts


def test_a_run_that_failed_may_be_tried_again_later(study: Study) -> None:
    cells = [cell for cell in cells_of("table_troubles") if cell.id.startswith("fails-once")]
    assert len(study.run(cells, Recorder(), retries=0).failed) == 1
    assert len(study.run(cells, Recorder(), retries=0).stored) == 1
    assert study.totals("table_troubles") == expected(cells)


def test_what_another_process_does_is_waited_for(study: Study) -> None:
    first, second = cells_of("figure_fine")[:2]
    lock = study.store.lock(first)
    assert lock is not None
    summaries: list[schedule.Summary] = []
    thread = threading.Thread(
        target=lambda: summaries.append(study.run([first, second], Patient()))
    )
    thread.start()
    assert study.notes.waits.wait(PATIENCE)
    study.store.save(first, {"total": -1}, {})
    lock.release()
    thread.join(PATIENCE)
    assert [*map(label, summaries[0].found)] == ["fine-0"]
    assert study.totals("figure_fine")["fine-0"] == -1
    assert not any(step.startswith("Fine 0") for step in study.steps())


def test_what_another_process_has_given_up_is_taken_over(study: Study) -> None:
    (cell,) = cells_of("figure_fine")[:1]
    lock = study.store.lock(cell)
    assert lock is not None
    thread = threading.Thread(target=lambda: study.run([cell], Patient()))
    thread.start()
    assert study.notes.waits.wait(PATIENCE)
    assert study.steps() == []
    lock.release()
    thread.join(PATIENCE)
    assert study.totals("figure_fine") == expected([cell])


def test_an_interrupt_leaves_all_to_be_taken_up(study: Study) -> None:
    (cell,) = cells_of("figure_slow", "laptop")
    short = replace(cell, config={**cell.config, "steps": 8})
    before = set(psutil.Process().children())
    study.notes.interrupt_at = "step 3"
    with pytest.raises(KeyboardInterrupt):
        study.run([short])
    assert not any(map(is_worker, set(psutil.Process().children()) - before))
    assert not study.store.finished(short)
    done = len(study.steps())
    assert 4 <= done < 8
    study.notes.interrupt_at = ""
    study.run([short])
    assert study.totals("figure_slow", "laptop") == expected([short])
    assert len(study.steps()) <= 8 + 1  # the step that was interrupted is done again


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "spawn_main" in " ".join(process.cmdline())
    return False


def one_task(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Any],
    *,
    cpu_only: bool = False,
) -> Task:
    """A task of an experiment that is made on the spot, for this process."""
    cell = Cell("figure_fine", "smoke", config("here"))
    experiment = replace(registry.load("figure_fine", "fake_study"), run=run, cpu_only=cpu_only)

    def load(name: str, package: str) -> Experiment:
        return experiment

    monkeypatch.setattr(work.registry, "load", load)
    return Task("fake_study", cell, tmp_path, tmp_path / "scratch", tmp_path / "log", threads=2)


def test_times_are_kept_apart_from_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Any, context: Any) -> Any:
        assert (context.data, context.threads, context.device) == (tmp_path, 2, "cpu")
        assert context.scratch.is_dir()
        return {"result": {"norm": 1.5}, "timing": {"total": 3.0}}

    event = perform(one_task(tmp_path, monkeypatch, run), lambda share, words: None)
    assert isinstance(event, Done)
    assert event.result == {"norm": 1.5}
    assert event.run["timing"] == {"total": 3.0}


def test_what_ran_before_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Any, context: Any) -> Any:
        return {"drawn": torch.rand(3).tolist(), "threads": torch.get_num_threads()}

    task = one_task(tmp_path, monkeypatch, run)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    events = [perform(task, lambda share, words: None) for _ in range(2)]
    assert isinstance(events[0], Done)
    assert isinstance(events[1], Done)
    assert events[0].result == events[1].result
    assert events[0].result["threads"] == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"loss": float("nan")}, "ValueError: result.loss: expected a finite number"),
        ({"loss": torch.ones(1)}, "TypeError: result.loss: expected what JSON can hold"),
        (None, "TypeError: result: expected a dict with what came out, got NoneType"),
        ({}, "TypeError: result: expected a dict with what came out, got an empty one"),
        ({"result": [1], "timing": {}}, "TypeError: result: expected a dict .* got list"),
    ],
)
def test_a_result_that_cannot_be_stored_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, line: str
) -> None:
    task = one_task(tmp_path, monkeypatch, lambda config, context: answer)
    event = perform(task, lambda share, words: None)
    assert isinstance(event, Failed)
    assert re.match(line, event.line)


def test_a_run_that_ends_the_program_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Any, context: Any) -> Any:
        raise SystemExit("enough")

    event = perform(one_task(tmp_path, monkeypatch, run), lambda share, words: None)
    assert isinstance(event, Failed)
    assert event.line == "SystemExit: enough"


def test_errors_on_one_line() -> None:
    assert error_line(ValueError("a\n  b")) == "ValueError: a b"
    assert error_line(KeyError()) == "KeyError"
    assert len(error_line(ValueError("x" * 10_000))) < 500


def test_what_is_said_too_often_is_left_out() -> None:
    said: list[float] = []
    say = now_and_then(lambda share, words: said.append(share), seconds=1000)
    for share in (0.1, 0.2, 0.3):
        say(share, "")
    assert said == [0.1]


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


@pytest.mark.parametrize(
    ("device", "complaint"),
    [
        ("foo", "expected one that torch knows, as cpu or cuda, got 'foo'"),
        ("", "expected one that torch knows"),
        ("meta", "expected one of this machine, got 'meta': use --device cpu"),
        ("cuda:2", "expected a GPU for 'cuda:2', got 2: the last is cuda:1"),
    ],
)
def test_devices_are_checked_by_name(
    monkeypatch: pytest.MonkeyPatch, device: str, complaint: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for there in ("cpu", "cuda", "cuda:1"):
        require_device(there)
    with pytest.raises(ValueError, match=complaint) as raised:
        require_device(device)
    assert "\n" not in str(raised.value)


def test_a_cluster_may_have_what_this_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    require_device("cuda", here=False)
    with pytest.raises(ValueError, match="torch knows"):
        require_device("foo", here=False)


@pytest.mark.parametrize(("cpu_only", "device"), [(True, "cpu"), (False, "meta")])
def test_what_is_for_the_cpu_alone_runs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_only: bool, device: str
) -> None:
    def run(config: Any, context: Any) -> Any:
        return {"device": context.device}

    task = replace(one_task(tmp_path, monkeypatch, run, cpu_only=cpu_only), device="meta")
    event = perform(task, lambda share, words: None)
    assert isinstance(event, Done)
    assert event.result["device"] == event.run["device"] == device


@pytest.mark.parametrize(
    ("answers", "is_its_own", "expected"),
    [
        (["abc", ""], True, "abc"),
        (["abc", ""], False, "abc-dirty"),
        (["abc", " M experiments/norms.py"], True, "abc-dirty"),
        (["abc", None], True, "abc-dirty"),
        ([None], True, None),
    ],
)
def test_the_commit_of_the_sources(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[str | None],
    is_its_own: bool,
    expected: str | None,
) -> None:
    rest = iter(answers)
    monkeypatch.setattr(surroundings, "_git", lambda *command: next(rest))
    monkeypatch.setattr(surroundings, "_is_library_of", lambda repository: is_its_own)
    assert surroundings.commit.__wrapped__() == expected


def test_whether_the_library_that_runs_is_that_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "spectralclip"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "norm.py").write_text("one = 1\n")
    (package / "inner" / "norm.pyc").touch()
    spec = importlib.util.spec_from_file_location("spectralclip", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert not surroundings._is_library_of(tmp_path)  # it has none
    there = tmp_path / "src" / "spectralclip"
    shutil.copytree(package, there, ignore=shutil.ignore_patterns("*.pyc"))
    assert surroundings._is_library_of(tmp_path)
    (there / "new.py").touch()
    assert not surroundings._is_library_of(tmp_path)
    (there / "new.py").unlink()
    (there / "inner" / "norm.py").write_text("one = 2\n")
    assert not surroundings._is_library_of(tmp_path)


def test_the_library_of_these_tests_is_that_of_the_repository() -> None:
    assert surroundings._is_library_of(Path(__file__).parents[2])


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
