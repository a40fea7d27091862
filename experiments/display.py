"""What is seen while runs go on: bars in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any, Protocol, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Is told what happens to runs."""

    def __enter__(self) -> Display:
        """Begin to show."""

    def __exit__(self, *problem: object) -> None:
        """Leave the terminal as it was."""

    def began(self, key: str, attempt: int) -> None:
        """A run has begun, not for the first time if the attempt is above 1."""

    def said(self, key: str, share: float, words: str) -> None:
        """It has come so far."""

    def found(self, key: str) -> None:
        """It was stored already, or another process has done it."""

    def elsewhere(self, key: str, owner: str) -> None:
        """Another process is doing it."""

    def stored(self, key: str, seconds: float) -> None:
        """It has finished."""

    def failed(self, key: str, line: str, *, again: bool) -> None:
        """It has not, and is to be begun again or not."""


def display(total: int) -> Display:
    """The one that suits the error stream."""
    return Bars(total, Console(stderr=True)) if sys.stderr.isatty() else Lines(total)


@final
class Lines:
    """A line for whatever happens, for logs; how far a run has come is left out."""

    def __init__(self, total: int) -> None:
        self._total, self._ended = total, 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def began(self, key: str, attempt: int) -> None:
        self._print(_begun(key, attempt))

    def said(self, key: str, share: float, words: str) -> None:
        pass

    def found(self, key: str) -> None:
        self._ended += 1

    def elsewhere(self, key: str, owner: str) -> None:
        self._print(_waits(key, owner))

    def stored(self, key: str, seconds: float) -> None:
        self._ended += 1
        self._print(f"stored {key} after {seconds:.1f} s")

    def failed(self, key: str, line: str, *, again: bool) -> None:
        self._ended += not again
        self._print(_failure(key, line, again))

    def _print(self, text: str) -> None:
        print(f"[{self._ended}/{self._total}] {text}", file=sys.stderr, flush=True)


@final
class Bars:
    """A bar for all runs, one below for each that is running, and lines for what goes wrong."""

    def __init__(self, total: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
            transient=True,
        )
        self._all = self._progress.add_task("all runs", total=total, count=f"0/{total}", words="")
        self._total, self._ended = total, 0
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._progress.stop()

    def began(self, key: str, attempt: int) -> None:
        words = "" if attempt == 1 else f"attempt {attempt}"
        self._bars[key] = self._progress.add_task(_short(key), total=1, count="0%", words=words)

    def said(self, key: str, share: float, words: str) -> None:
        if key in self._bars:
            count = f"{min(max(share, 0), 1):.0%}"
            self._progress.update(self._bars[key], completed=share, count=count, words=words)

    def found(self, key: str) -> None:
        self._one_more()

    def elsewhere(self, key: str, owner: str) -> None:
        self._print(_waits(key, owner))

    def stored(self, key: str, seconds: float) -> None:
        self._remove(key)
        self._one_more()

    def failed(self, key: str, line: str, *, again: bool) -> None:
        self._remove(key)
        self._print(_failure(key, line, again))
        if not again:
            self._one_more()

    def _one_more(self) -> None:
        self._ended += 1
        count = f"{self._ended}/{self._total}"
        self._progress.update(self._all, completed=self._ended, count=count)

    def _remove(self, key: str) -> None:
        self._progress.remove_task(self._bars.pop(key))

    def _print(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _begun(key: str, attempt: int) -> str:
    return f"began {key}" + ("" if attempt == 1 else f", attempt {attempt}")


def _waits(key: str, owner: str) -> str:
    return f"{key} is being done by {owner}"


def _failure(key: str, line: str, again: bool) -> str:
    return f"{'failed, to be tried again' if again else 'failed'}: {key}: {line}"


def _short(key: str) -> str:
    """Without the digest, which tells a reader nothing."""
    return key.rpartition("-")[0] or key
