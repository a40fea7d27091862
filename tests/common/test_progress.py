"""What a user is told while something takes long."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from torch import nn

import spectralclip as sc
from spectralclip._audit import examine
from spectralclip._common import progress as _progress
from spectralclip._common.progress import Steps, shown


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_progress.time, "monotonic", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_step_that_takes_longest_is_named_with_its_time(clock: Clock) -> None:
    told: list[tuple[int, int, str, float]] = []
    steps = Steps(2, lambda *step: told.append(step))
    assert steps.under_way() == ""
    steps.begin("first")
    assert steps.under_way() == "first"
    clock.now += 7
    steps.begin("sec\nond")
    assert steps.under_way() == "first (7 s)"
    steps.done("first")
    assert steps.under_way() == "sec\\nond"
    steps.done("sec\nond")
    assert told == [(1, 2, "first", 7.0), (2, 2, "sec\nond", 0.0)]


def test_lines_say_how_long_a_step_took(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with shown(True, "audit", 2) as steps:
        for name, seconds in (("short", 0.5), ("long", 12.0)):
            steps.begin(name)
            clock.now += seconds
            steps.done(name)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "audit 1/2 short\naudit 2/2 long (12 s)\n"


def test_the_bar_names_the_layer_that_it_is_at(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    own = examine.norm_bounds_and_vector

    def slow(*args: object, **kwargs: object) -> object:
        clock.now += 9
        import time

        time.sleep(0.3)  # the bar is drawn ten times a second
        return own(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(examine, "norm_bounds_and_vector", slow)
    sc.audit(model, torch.zeros(1, 4), lipschitz=False, progress=True)
    assert "2 (9 s)" in terminal.getvalue()
    sc.clip_model_(model, torch.zeros(1, 4), 0.1)
    assert "clip" in terminal.getvalue()
    written = len(terminal.getvalue())
    sc.clip_model_(model, torch.zeros(1, 4), 0.1, progress=False)
    assert len(terminal.getvalue()) == written
