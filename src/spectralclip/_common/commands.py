"""How a command of a terminal ends: one line for the user and an exit code, whatever happens."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from spectralclip._common.amx import FaultyProcessorError
from spectralclip._common.text import printable, shown_reason

FINE, BAD_INPUT, INTERRUPTED, NOBODY_READS, TERMINATED = 0, 2, 130, 141, 143


class Problem(Exception):
    """Something that the user can put right: what it is, what was expected, what to do."""


@final
class Terminated(BaseException):
    """Another process has ended this one by SIGTERM, and waits for it to clear up."""


def guarded(
    run: Callable[[], int],
    *,
    debug: bool,
    notes: Mapping[int, str],
    interrupts: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
    broken_pipe: type[Exception] = BrokenPipeError,
) -> int:
    """Run a command and return its exit code; an error becomes one line on stderr.

    With an exit code of the `notes` comes what they say. The parser of the command line may put
    `interrupts` in the place of Ctrl-C, and output may raise a `broken_pipe` of its own.
    """
    try:
        with _unwound_by_sigterm():
            code = run()
    except interrupts:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except broken_pipe:
        # What is left in buffers goes nowhere, without complaint when the interpreter closes them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = NOBODY_READS
    except Exception as error:
        if debug:
            traceback.print_exc()
        note(f"error: {_message(error)}")
        code = BAD_INPUT
    if code in notes:  # the parser may return the code of an interruption, too
        note(notes[code])
    return code


def note(text: str) -> None:
    """Tell the user, in one line, something that is not a part of the output."""
    print(printable(text), file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """A foreign error's message on one line, or its type where it has none."""
    return shown_reason(str(error)) or type(error).__name__


def _cannot(action: str, error: OSError) -> str:
    return f"cannot {action} {error.filename}: {error.strerror or one_line(error)}."


@contextmanager
def file_problems(action: str) -> Iterator[None]:
    """A file that cannot be read or written in the block is a problem of the user's."""
    try:
        yield
    except OSError as error:
        raise Problem(_cannot(action, error)) from error


def _message(error: Exception) -> str:
    if hasattr(error, "format_message"):  # of the parser of the command line
        context = getattr(error, "ctx", None)
        where = f"{context.command_path} " if context is not None else ""
        text = " ".join(str(error.format_message()).split()).rstrip(".")
        return f"{text}. See {where}--help."
    if isinstance(error, Problem):
        return " ".join(str(error).split())
    if isinstance(error, (ValueError, FaultyProcessorError)):
        return one_line(error)
    if isinstance(error, OSError) and error.filename is not None:
        return _cannot("use", error)
    return f"{type(error).__name__}: {one_line(error)} (--debug shows where)"


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, as Ctrl-C does, so that files and processes are cleared up."""
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
