"""Runs one after the other: killed, failing, waited for, interrupted, and done once."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from engine_cases import PATIENCE, Study, cells_of, expected, is_worker, label
from fake_study.adding import config

from experiments import registry
from experiments.engine import schedule, work
from experiments.engine.local import LocalEngine
from experiments.engine.work import Event, Task, perform
from experiments.experiment import Cell


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


def test_what_there_was_no_time_for_is_done_by_the_next_command(study: Study) -> None:
    cells = cells_of("figure_fine")
    summary = study.run(cells, seconds=0.0)
    assert (summary.stored, summary.found) == ([], [])
    assert sorted(map(label, summary.left)) == sorted(label(cell.id) for cell in cells)
    assert study.run(cells).left == []
    assert study.totals("figure_fine") == expected(cells)


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
