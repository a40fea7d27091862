"""One run in a process: its result, its device, its log and its failures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_study.adding import config

from experiments import registry
from experiments.engine import work
from experiments.engine.work import Done, Failed, Task, error_line, now_and_then, perform
from experiments.experiment import Cell, Experiment


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
