"""`python -m benchmarks.versions BEFORE AFTER`: two checkouts of the library, in turns.

Each checkout works in a process of its own, on one thread. Of every case, the two take turns, and
the medians of processor seconds are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.versions.worker import CASES

WORKER = Path(__file__).with_name("worker.py")


class Version:
    """A process that runs cases with the library of one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = json.loads(self._line())
        if not Path(said["file"]).is_relative_to((checkout / "src").resolve()):
            raise SystemExit(f"{checkout} is no checkout: {said['file']} was imported.")
        commit = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
        head = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip()
        self.about = {"version": said["version"], "commit": head}

    def measure(self, name: str) -> dict[str, Any]:
        """What a case takes."""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        measured: dict[str, Any] = json.loads(self._line())
        return measured

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("A version has failed; its error is above.")
        return line


def compare(before: Version, after: Version, name: str, repeats: int) -> dict[str, Any]:
    """One case, in turns."""
    for version in (before, after):
        version.measure(name)  # the first call of a kind pays for imports and caches
    runs = [(before.measure(name), after.measure(name)) for _ in range(repeats)]
    old, new = (list(side) for side in zip(*runs, strict=True))
    seconds = [statistics.median(run["seconds"] for run in side) for side in (old, new)]
    return {
        "case": name,
        "seconds": seconds,
        "ratio": statistics.median(b["seconds"] / a["seconds"] for a, b in runs),
        "num_matvecs": [old[0]["num_matvecs"], new[0]["num_matvecs"]],
        "value": [old[0]["value"], new[0]["value"]],
    }


def main() -> None:
    """Compare, print a table, and store it if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--output", type=Path, help="store the result as JSON")
    given = parser.parse_args()
    before, after = Version(given.before), Version(given.after)
    rows = []
    for name in (name for name in CASES if given.only in name):
        rows.append(compare(before, after, name, given.repeats))
        row = rows[-1]
        counts = " -> ".join(map(str, row["num_matvecs"]))
        shown = [f"{value:.6g}" for value in row["value"]]
        print(f"{name:45} x {row['ratio']:.3f}  products {counts:12}  value {' -> '.join(shown)}")
    if given.output:
        machine = {"processor": platform.processor(), "torch": torch.__version__, "threads": 1}
        found = {"before": before.about, "after": after.about, "machine": machine, "cases": rows}
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
