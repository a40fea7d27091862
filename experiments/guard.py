"""How the study's commands end: as all commands of the library, with exit codes of their own."""

from __future__ import annotations

from collections.abc import Callable

import typer

from spectralclip._common import INTERRUPTED, TERMINATED
from spectralclip._common import guarded as ended

FAILED = 1
CODES = (
    "Exit codes: 0 fine, 1 some runs have failed, 2 bad input, 130 stopped by Ctrl-C, 143 "
    "terminated. --debug shows where an error comes from."
)
_STAYS = "what is stored stays, and the same command goes on with the rest."


def guarded(run: Callable[[], int], *, debug: bool) -> int:
    """Run a command and return its exit code, whatever happens."""
    notes = {INTERRUPTED: f"stopped: {_STAYS}", TERMINATED: f"terminated: {_STAYS}"}
    return ended(run, debug=debug, notes=notes, interrupts=(KeyboardInterrupt, typer.Abort))
