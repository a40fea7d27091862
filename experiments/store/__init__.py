"""Finished runs, one JSON file each: `<folder>/<experiment>/<id>.json`.

A file appears whole or not at all. Beside them `<folder>/.work` keeps what unfinished runs need:
their checkpoints, what they have printed, and the locks of those that are running.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from experiments.experiment import SCALES, Cell, Record, Result, Scale
from experiments.store.lock import Lock, owner, take
from experiments.store.plain import plain
from spectralclip._common import require_writable, write_text

FORMAT = 1
_FIELDS = {"format", "experiment", "id", "scales", "config", "result", "run"}


class Unreadable(ValueError):
    """A file in the place of a stored run that is none."""


def default_folder(scale: Scale | None) -> Path:
    """Where results of a scale go: those of the smoke test are not worth keeping."""
    return Path("runs/smoke") if scale == "smoke" else Path("results")


def results_folder(given: Path | None, scale: Scale | None) -> Path:
    """The folder of results that was given, or that of a scale.

    Raises:
        ValueError: It is a file.
    """
    folder = given or default_folder(scale)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--results: expected a folder for results, got {folder}: it is a file.")
    return folder


@final
class Store:
    """The runs in a folder.

    A configuration may be in the grids of two scales. It is run once, and its file lists both.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, cell: Cell) -> Path:
        """The file of a run."""
        return self.folder / cell.experiment / f"{cell.id}.json"

    def finished(self, cell: Cell) -> bool:
        """Whether `records` has this run.

        Raises:
            Unreadable: There is a file in its place that is no stored run.
        """
        path = self.path(cell)
        return path.exists() and cell.scale in _read(path)["scales"]

    def save(self, cell: Cell, result: Result, run: Mapping[str, Any]) -> Path:
        """Store a run.

        Args:
            cell: That was run.
            result: What came out of it; the same whenever it is run.
            run: What may differ: versions, machine, times.

        Returns:
            The file.

        Raises:
            TypeError: JSON cannot hold the result.
            ValueError: A number in it is not finite, or it is empty.
            OSError: The file cannot be written.
        """
        if not result:
            raise ValueError("result: expected what came out of the run, got nothing.")
        return self._write(
            {
                "format": FORMAT,
                "experiment": cell.experiment,
                "id": cell.id,
                "scales": [cell.scale],
                "config": plain(cell.config, "config"),
                "result": plain(result),
                "run": plain(run, "run"),
            }
        )

    def adopt(self, cell: Cell) -> bool:
        """Count a run of the same configuration at another scale as one of this scale too.

        Returns:
            Whether there is one.
        """
        path = self.path(cell)
        if not path.exists():
            return False
        document = _read(path)
        scales = {*document["scales"], cell.scale}
        self._write({**document, "scales": [scale for scale in SCALES if scale in scales]})
        return True

    def records(self, experiment: str, scale: Scale) -> list[Record]:
        """The finished runs of an experiment at a scale, in the order of their ids.

        Raises:
            Unreadable: One of the files is no stored run.
        """
        found = [_read(path) for path in sorted((self.folder / experiment).glob("*.json"))]
        return [
            Record(one["experiment"], one["id"], scale, one["config"], one["result"], one["run"])
            for one in found
            if scale in one["scales"]
        ]

    def scratch(self, cell: Cell) -> Path:
        """The folder for a run's checkpoints."""
        return self._work(cell)

    def log(self, cell: Cell) -> Path:
        """What an unfinished run has printed, and the tracebacks of its failures."""
        return self._work(cell, ".log")

    def lock(self, cell: Cell) -> Lock | None:
        """The right to do a run; None while another process has it."""
        return take(self._work(cell, ".lock"))

    def owner(self, cell: Cell) -> str:
        """Which process has the lock of a run, in words."""
        return owner(self._work(cell, ".lock"))

    def room(self, cell: Cell) -> Lock | None:
        """The right to use the machine: with others who do, or alone if the run measures times.

        None while another process that goes on in this folder measures times, or would disturb.
        """
        return take(self._room(), shared=not cell.alone)

    def room_owner(self) -> str:
        """Which process has that right, in words."""
        return owner(self._room())

    def clear(self, cell: Cell) -> None:
        """Remove what only an unfinished run needs."""
        shutil.rmtree(self.scratch(cell), ignore_errors=True)
        self.log(cell).unlink(missing_ok=True)

    def require_writable(self) -> None:
        """Make the folder.

        Raises:
            OSError: It cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        require_writable(self.folder / "probe.json")

    def _room(self) -> Path:
        return self.folder / ".work" / "room.lock"

    def _work(self, cell: Cell, ending: str = "") -> Path:
        return self.folder / ".work" / cell.experiment / f"{cell.id}{ending}"

    def _write(self, document: Mapping[str, Any]) -> Path:
        path = self.folder / str(document["experiment"]) / f"{document['id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
        return path


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        got = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise _unreadable(path, f"expected format {FORMAT}, got {got}")
    if missing := _FIELDS - document.keys():
        raise _unreadable(path, f"expected the fields {', '.join(sorted(missing))}, got none")
    if document["id"] != path.stem or document["experiment"] != path.parent.name:
        raise _unreadable(path, f"it is of {document['experiment']}/{document['id']}")
    _check_parts(path, document)
    return document


def _check_parts(path: Path, document: Mapping[str, Any]) -> None:
    for name in ("config", "result", "run"):
        if not isinstance(document[name], dict):
            got = type(document[name]).__name__
            raise _unreadable(path, f"{name}: expected names with values, got {got}")
    if not document["result"]:
        raise _unreadable(path, "result: expected what came out of the run, got nothing")
    scales = document["scales"]
    if not isinstance(scales, list) or not scales or any(one not in SCALES for one in scales):
        raise _unreadable(path, f"scales: expected some of {', '.join(SCALES)}, got {scales}")
    try:
        wanted = Cell(document["experiment"], scales[0], document["config"]).id
    except ValueError as error:
        raise _unreadable(path, f"config: {error}") from error
    if wanted != document["id"]:
        raise _unreadable(path, f"its configuration is that of {wanted}")


def _unreadable(path: Path, why: str) -> Unreadable:
    return Unreadable(f"{path} is not a stored run ({why}): remove it, and run the cell again.")
