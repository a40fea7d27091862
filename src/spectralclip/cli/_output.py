"""What the command line prints: for a person at a terminal, or plain text for whatever reads it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, final

from spectralclip._audit import Audit, AuditComparison, Column, Sheet, plain_table, rich_table
from spectralclip._clipping import ClipResult
from spectralclip._common import note as note
from spectralclip._common import shown_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CLIP_COLUMNS = (
    Column("layer", "left"),
    Column("norm before"),
    Column("after"),
    Column("moved by", dispensable=1),
)


@final
class BrokenPipe(Exception):
    """Whoever was reading has gone away, as `head` does."""


def show(result: Audit | AuditComparison) -> None:
    _print(result.table, result.__str__)


def show_clipped(results: Mapping[str, ClipResult], max_norm: float) -> None:
    moved = {name: result for name, result in results.items() if result.distance > 0}
    rows = [
        (shown_name(name), f"{one.norm_before:.4g}", f"{one.norm_after:.4g}", f"{one.distance:.4g}")
        for name, one in moved.items()
    ]
    within = len(results) - len(moved)
    footer = f"{len(moved)} of {len(results)} layers moved; {within} within the bound already."
    show_sheet(Sheet(f"clipped to norm {max_norm:g}", CLIP_COLUMNS, rows, footer))


def show_sheet(sheet: Sheet) -> None:
    _print(lambda: rich_table(sheet), lambda: plain_table(sheet))


def _print(rich: Callable[[], Table], plain: Callable[[], str]) -> None:
    """A table as wide as the terminal, or plain text that nothing cuts short."""
    if sys.stdout.isatty():
        _console().print(rich())
    else:
        say(plain())


def _console() -> Console:
    """A console that leaves the exit code to us when nobody reads any more."""
    from rich.console import Console  # only terminals need it, and it is large

    @final
    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipe

    return OurConsole()


def say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError as error:
        raise BrokenPipe from error


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the source line that they come from."""

    def line(message: Warning | str, *where: Any, **more: Any) -> None:
        note(f"warning: {' '.join(str(message).split())}")

    usual: Any = warnings.showwarning
    warnings.showwarning = line
    try:
        yield
    finally:
        warnings.showwarning = usual


@contextmanager
def forgiving_encoding() -> Iterator[None]:
    """Let an output that cannot write a character write a question mark."""
    with ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                stack.callback(reconfigure, errors=stream.errors)
                reconfigure(errors="replace")
        yield
