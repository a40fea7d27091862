"""How far a long computation has come, for whoever wants to know."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from spectralclip._audit._text import shown_name

Progress: TypeAlias = bool | Callable[[int, int, str], object]
"""True for a bar, or a function of the steps done, their number, and the name of the last."""

Step: TypeAlias = Callable[[str], None]


@contextmanager
def shown(progress: Progress, title: str, total: int) -> Iterator[Step]:
    """A function to call with the name of each step once it is done."""
    if callable(progress):
        yield _counting(progress, total)
    elif not progress:
        yield lambda name: None
    else:
        with _bar(title, total) as step:
            yield step


def _counting(report: Callable[[int, int, str], object], total: int) -> Step:
    done = 0

    def step(name: str) -> None:
        nonlocal done
        done += 1
        report(done, total, name)

    return step


@contextmanager
def _bar(title: str, total: int) -> Iterator[Step]:
    """A bar on the error stream; lines where that is no terminal, or rich is missing."""
    rich = importlib.util.find_spec("rich") is not None and sys.stderr.isatty()
    if not rich:
        yield _counting(functools.partial(_line, title), total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}", markup=False),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, name="")
        yield lambda name: bar.update(task, advance=1, name=shown_name(name))


def _line(title: str, done: int, total: int, name: str) -> None:
    print(f"{title} {done}/{total} {shown_name(name)}", file=sys.stderr, flush=True)
