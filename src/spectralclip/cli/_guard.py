"""Whatever goes wrong in a command: one line for the user, and an exit code."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import typer
from typer.core import TyperGroup

from spectralclip._common import FaultyProcessorError
from spectralclip.cli import _output
from spectralclip.cli._options import BAD_INPUT, INTERRUPTED, NOBODY_READS, TERMINATED
from spectralclip.cli._problems import Problem, cannot, one_line, raised


@final
class Terminated(BaseException):
    """Somebody else has ended this process, and waits for it to clear up."""


def guarded(run: Callable[[], int], *, debug: bool) -> int:
    """Run a command, and tell its exit code, whatever becomes of it."""
    try:
        with _output.forgiving_encoding(), _output.plain_warnings(), _ending_in_order():
            code = run()
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except _output.BrokenPipe:
        _output.abandon_output()
        code = NOBODY_READS
    except Exception as error:
        if debug:
            traceback.print_exc()
        _output.note(f"error: {_message(error)}")
        code = BAD_INPUT
    if code == INTERRUPTED:
        _output.note("stopped; nothing was written.")
    return code


@final
class Commands(TyperGroup):
    """The commands, which run a model's code too.

    If that says `sys.exit(0)`, a gate is not to pass.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run one of them; what would end the program with a code of its own is an error."""
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:
            raise Problem(f"the model's code has ended the program: {raised(error)}.") from error


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM unwind the stack, as Ctrl-C does, so that temporary files are removed."""
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


def _message(error: Exception) -> str:
    """One line on what is wrong."""
    if hasattr(error, "format_message"):  # of the parser of the command line
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "spectralclip"
        text = " ".join(str(error.format_message()).split()).rstrip(".")
        return f"{text}. See {where} --help."
    if isinstance(error, (Problem, ValueError, FaultyProcessorError)):
        return one_line(error)
    if isinstance(error, OSError) and error.filename is not None:
        return str(cannot("use", error))
    return f"{type(error).__name__}: {one_line(error)} (--debug shows where)"
