"""Times, and whether they were timed undisturbed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments.experiment import Record

T = TypeVar("T")

OWN_CORE = 0.9  # less than this share of a core, and a time is not the method's own
UNDISTURBED = (
    f"Runs that had other cells beside them, or less than {100 * OWN_CORE:.0f} % of a core, do not "
    "count."
)
Times = list[tuple[float, float]]  # seconds of each step by the clock, and of the processor
# A process that takes less than this share of a core while another is timed is at rest.
AT_REST = 0.1


class Stopwatch:
    """Takes the seconds of some calls, and what share of a core this process had meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self._began, self._siblings = time.perf_counter(), _siblings()
        self._starts: dict[str, tuple[float, float]] = {}

    def time(self, name: str, work: Callable[[], T], repeats: int = 1) -> T:
        """Call, and remember how long it took by the clock on the wall.

        Of several calls that is the median, with the least share of a core that any of them had.
        """
        seconds, shares = [], []
        for _ in range(repeats):
            self.start(name)
            done = work()
            self.stop(name)
            seconds.append(self.seconds[name])
            shares.append(self.shares[name])
        self.seconds[name], self.shares[name] = statistics.median(seconds), min(shares)
        return done

    def start(self, name: str) -> None:
        """Begin to take the time of something."""
        self._starts[name] = time.perf_counter(), time.process_time()

    def stop(self, name: str) -> None:
        """It has ended."""
        wall, own = self._starts.pop(name)
        self.seconds[name] = time.perf_counter() - wall
        self.shares[name] = (time.process_time() - own) / max(self.seconds[name], 1e-9)

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


def seconds_of(times: Times) -> float:
    """What a step takes on the average where nothing else runs.

    The median by the clock does not count what others did meanwhile, nor what a method does once in
    a hundred steps. That is what the mean of the processor's times is above their median.
    """
    walls, own = [wall for wall, _ in times], [own for _, own in times]
    rare = statistics.fmean(own) / max(statistics.median(own), 1e-9)
    return statistics.median(walls) * max(1.0, rare)


def share_of(times: Times) -> float:
    """Which share of a core most steps had."""
    return statistics.median(own / max(wall, 1e-9) for wall, own in times)


def undisturbed(records: Sequence[Record]) -> list[Record]:
    """The timed runs that had a core to themselves."""
    return [record for record in records if _had_own_core(record.run["timing"])]


def _had_own_core(timing: Mapping[str, Any]) -> bool:
    """Whether what was timed had a core to itself, from a `summary`."""
    return not timing["cells_beside"] and min(timing["core_shares"].values()) >= OWN_CORE


def disturbances(timings: Sequence[Mapping[str, Any]]) -> str:
    """What else went on while times were taken, in a sentence."""
    known = [one["cells_beside"] for one in timings if one["cells_beside"] is not None]
    least = min(min(one["core_shares"].values()) for one in timings)
    words = "It is not known whether other cells ran at the same time"
    if known:
        words = f"At most {max(known)} other cells ran at the same time"
    return f"{words}; the measuring process had at least {100 * least:.0f} % of a core."


def left_out(disturbed: int) -> str:
    """How many runs are not shown because something else went on, in a sentence after others."""
    return f" Runs that were disturbed, and are left out: {disturbed}." if disturbed else ""


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
