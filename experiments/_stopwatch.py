"""Times, and whether they were taken in peace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# A process that takes less than this share of a core while another is timed is at rest.
AT_REST = 0.1


class Stopwatch:
    """Takes the seconds of some calls, and what share of a core this process had meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self._began, self._siblings = time.perf_counter(), _siblings()

    def time(self, name: str, work: Callable[[], T]) -> T:
        """Call, and remember how long it took by the clock on the wall."""
        wall, own = time.perf_counter(), time.process_time()
        done = work()
        self.seconds[name] = time.perf_counter() - wall
        self.shares[name] = (time.process_time() - own) / max(self.seconds[name], 1e-9)
        return done

    def beside(self) -> int | None:
        """How many other workers of the same engine were busy since the start, where known."""
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        now = _siblings()
        if now is None or self._siblings is None:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        spent = [now[process] - self._siblings.get(process, 0) for process in now]
        return sum(one / ticks > AT_REST * elapsed for one in spent)

    def summary(self, threads: int) -> dict[str, Any]:
        """All of it, as it is stored."""
        return {
            "seconds": dict(self.seconds),
            "core_shares": {name: round(share, 3) for name, share in self.shares.items()},
            "threads": threads,
            "cells_beside": self.beside(),
        }


def _siblings() -> dict[int, int] | None:
    """The clock ticks that each other process of the same parent has used; None if unknown."""
    processes = Path("/proc")
    if not (processes / "self" / "stat").exists():
        return None
    used: dict[int, int] = {}
    for entry in processes.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            # The name, which may hold anything, is in brackets.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getppid():
            used[int(entry.name)] = int(fields[11]) + int(fields[12])
    return used
