"""Whatever goes wrong in a command: one line for the user, and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, final

import typer

from experiments.engine.work import error_line

FINE, FAILED, BAD_INPUT, INTERRUPTED, NOBODY_READS, TERMINATED = 0, 1, 2, 130, 141, 143
_STOPPED = {INTERRUPTED: "stopped", TERMINATED: "terminated"}
CODES = (
    "Exit codes: 0 fine, 1 some runs have failed, 2 bad input, 130 stopped by Ctrl-C, 143 "
    "terminated. --debug shows where an error comes from."
)


@final
class Problem(Exception):
    """Something that the user can put right."""


@final
class Terminated(BaseException):
    """Somebody else has ended this process, and waits for it to clear up."""


def guarded(run: Callable[[], int], *, debug: bool) -> int:
    """Run a command, and tell its exit code, whatever becomes of it."""
    try:
        with _ending_in_order():
            code = run()
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in buffers goes nowhere
        code = NOBODY_READS
    except Exception as error:
        if debug:
            traceback.print_exc()
        note(f"error: {_message(error)}")
        code = BAD_INPUT
    if code in _STOPPED:  # which the parser of the command line may tell by its code alone
        note(f"{_STOPPED[code]}: what is stored stays, and the same command goes on with the rest.")
    return code


def note(text: str) -> None:
    """Tell the user something that is not the command's output."""
    print(text, file=sys.stderr, flush=True)


def _message(error: Exception) -> str:
    """One line on what is wrong."""
    if hasattr(error, "format_message"):  # of the parser of the command line
        return f"{' '.join(str(error.format_message()).split()).rstrip('.')}. See --help."
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}."
    if isinstance(error, ValueError) or type(error).__module__.startswith("experiments."):
        return " ".join(str(error).split())
    return f"{error_line(error)} (--debug shows where)"


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM unwind the stack, as Ctrl-C does, so that processes are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
