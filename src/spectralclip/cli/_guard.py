"""Whatever goes wrong in a command: one line for the user, and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import typer
from typer.core import TyperGroup

from spectralclip._common import INTERRUPTED, Problem, Terminated
from spectralclip._common import guarded as ended
from spectralclip.cli import _output
from spectralclip.cli._problems import raised


def guarded(run: Callable[[], int], *, debug: bool) -> int:
    """Run a command and return its exit code, whatever happens."""
    with _output.forgiving_encoding(), _output.plain_warnings():
        notes = {INTERRUPTED: "stopped; nothing was written."}
        return ended(
            run,
            debug=debug,
            notes=notes,
            interrupts=(KeyboardInterrupt, typer.Abort),
            broken_pipe=_output.BrokenPipe,
        )


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
