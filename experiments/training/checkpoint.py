"""The state of a run after an epoch, in one file that appears whole or not at all."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from experiments.engine.sources import sources_digest
from experiments.engine.surroundings import commit
from experiments.engine.work import error_line
from experiments.training.config import TrainConfig
from experiments.training.process_group import ProcessGroup
from spectralclip._common import replacing

NAME = "checkpoint.pt"
# Of these an error says that they differ, and not how: they are long, and tell a reader nothing.
_UNTOLD = ("configuration", "state of the sources")


@final
@dataclass(frozen=True)
class Checkpoint:
    """Where the state of a run is kept.

    Attributes:
        folder: For its file.
        config: Of the run.
        group: The processes that do it.
        threads: Of each of them.
    """

    folder: Path
    config: TrainConfig
    group: ProcessGroup
    threads: int

    def save(self, state: dict[str, Any]) -> None:
        """Write the state; the first process does, and the others wait for it."""
        if self.group.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.folder / NAME) as file:
                torch.save({"origin": self._origin(), **state}, file)
        self.group.wait()

    def load(self) -> dict[str, Any] | None:
        """The state that was written, if there is one.

        Raises:
            ValueError: It is damaged, is of another run, or was begun under other conditions.
        """
        path = self.folder / NAME
        if not path.exists():
            return None
        state = _read(path)
        begun = state["origin"] if isinstance(state.get("origin"), dict) else {}
        other = _differences(begun, self._origin())
        if other:
            raise ValueError(
                f"{path} is of another {' and another '.join(other)}: remove it to begin anew, or "
                "go on as it was begun."
            )
        return state

    def _origin(self) -> dict[str, Any]:
        """What a state belongs to: the configuration, and all that the last bits depend on.

        What one version of the code has begun, another is not to finish: the result would be of
        neither. The commit does not tell versions apart that were never committed.
        """
        return {
            "configuration": json.dumps(self.config.to_dict(), sort_keys=True),
            "commit": commit(),
            "state of the sources": sources_digest(),
            "version of torch": str(torch.__version__),
            "version of numpy": np.__version__,
            "number of processes": self.group.size,
            "number of threads": self.threads,
            "kind of device": self.group.device.type,
        }


def _read(path: Path) -> dict[str, Any]:
    """What a file holds, which torch packs as a zip archive with checksums it does not look at."""
    content = io.BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(content) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is another")
        content.seek(0)
        state = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is cut off or overwritten may end in any error
        raise ValueError(
            f"{path} is damaged ({error_line(error)}): remove it to begin anew."
        ) from error
    return state if isinstance(state, dict) else {}


def _differences(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the run was begun, with both values."""
    return [
        name if name in _UNTOLD else f"{name} ({begun.get(name, 'unknown')}, now {value})"
        for name, value in now.items()
        if begun.get(name) != value
    ]
