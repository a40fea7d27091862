"""How far a long computation has come, what it is at and for how long, for who wants to know."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from spectralclip._common.text import shown_name

Progress: TypeAlias = bool | Callable[[int, int, str], object]
"""True for a bar, or a function of the steps done, their number, and the name of the last."""

LONG = 2.0  # seconds from which a step says how long it takes


class Steps:
    """What a computation tells of its steps: that one begins, and that it is done.

    Several may be under way at once. `tell` is called when one is done.
    """

    def __init__(self, total: int, tell: Callable[[int, int, str, float], object]) -> None:
        self._total, self._tell, self._completed = total, tell, 0
        self._began: dict[str, float] = {}

    def begin(self, name: str) -> None:
        self._began[name] = time.monotonic()

    def done(self, name: str) -> None:
        now = time.monotonic()
        self._completed += 1
        self._tell(self._completed, self._total, name, now - self._began.pop(name, now))

    def under_way(self) -> str:
        """The step that has taken longest so far, and how long; empty if there is none."""
        if not self._began:
            return ""
        name, began = min(self._began.items(), key=lambda item: item[1])
        return shown_name(name) + _how_long(time.monotonic() - began)


def _how_long(seconds: float) -> str:
    return f" ({seconds:.0f} s)" if seconds >= LONG else ""


@contextmanager
def shown(progress: Progress, title: str, total: int) -> Iterator[Steps]:
    """Steps that are shown: by a function, by a bar, or not at all."""
    if callable(progress):
        report = progress
        yield Steps(total, lambda done, total, name, seconds: report(done, total, name))
    elif not progress:
        yield Steps(total, lambda *step: None)
    elif importlib.util.find_spec("rich") is not None and sys.stderr.isatty():
        with _bar(title, total) as steps:
            yield steps
    else:
        yield Steps(total, lambda *step: _line(title, *step))


@contextmanager
def _bar(title: str, total: int) -> Iterator[Steps]:
    """A bar on the error stream; it goes on to say what it is at while a step takes long."""
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class UnderWay(progress.ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(steps.under_way())

    counts = progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), UnderWay()
    columns = progress.TextColumn(title), progress.BarColumn(), *counts
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=total)
    steps = Steps(total, lambda *step: bar.update(task, advance=1))
    with bar:
        yield steps


def _line(title: str, done: int, total: int, name: str, seconds: float) -> None:
    """A line on the error stream, where that is no terminal or rich is missing."""
    text = f"{title} {done}/{total} {shown_name(name)}{_how_long(seconds)}"
    print(text, file=sys.stderr, flush=True)
