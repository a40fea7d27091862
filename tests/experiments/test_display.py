"""How far runs have come, as bars and as lines."""

from __future__ import annotations

import io
import re

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console

from experiments.display import Bars, Lines


def test_bars_of_all_and_of_each_run() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with Bars(3, console) as bars:
        bars.began("table_one/gouk-0123456789", 1)
        bars.began("table_one/none-0123456789", 2)
        bars.said("table_one/gouk-0123456789", 0.5, "epoch 1 [of 2]")
        assert len(bars._progress.tasks) == 3
        bars._progress.refresh()
        bars.found("table_one/old-0123456789")
        bars.stored("table_one/gouk-0123456789", 1.0)
        bars.said("table_one/gouk-0123456789", 1, "late")
        bars.failed("table_one/none-0123456789", "ValueError: [bold] no", again=True)
        bars.elsewhere("table_one/far-0123456789", "process 7 on a")
        assert [task.completed for task in bars._progress.tasks] == [2]
    text = screen.getvalue()
    assert re.search(r"table_one/gouk .* 50% .* epoch 1 \[of 2\]", text)
    assert re.search(r"table_one/none .* 0% .* attempt 2", text)
    assert "to be tried again: table_one/none-0123456789: ValueError: [bold] no" in text
    assert "table_one/far-0123456789 is being done by process 7 on a" in text


def test_lines_count_what_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(3) as lines:
        lines.found("a")
        lines.began("b", 2)
        lines.said("b", 0.5, "half")
        lines.failed("b", "ValueError: no", again=True)
        lines.failed("b", "ValueError: no", again=False)
    assert capsys.readouterr().err.splitlines() == [
        "[1/3] began b, attempt 2",
        "[1/3] failed, to be tried again: b: ValueError: no",
        "[2/3] failed: b: ValueError: no",
    ]
