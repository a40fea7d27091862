"""The state of a run after an epoch, in one file that appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from experiments.engine.surroundings import commit
from experiments.training.config import TrainConfig
from experiments.training.team import Team
from spectralclip._atomic import replacing

NAME = "checkpoint.pt"


@final
@dataclass(frozen=True)
class Checkpoint:
    """Where the state of a run is kept.

    Attributes:
        folder: For its file.
        config: Of the run.
        team: The processes that do it.
        threads: Of each of them.
    """

    folder: Path
    config: TrainConfig
    team: Team
    threads: int

    def save(self, state: dict[str, Any]) -> None:
        """Write the state; the first process does, and the others wait for it."""
        if self.team.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.folder / NAME) as file:
                torch.save({"origin": self._origin(), **state}, file)
        self.team.wait()

    def load(self) -> dict[str, Any] | None:
        """The state that was written, if there is one.

        Raises:
            ValueError: It is of another run, or was begun under other conditions.
        """
        path = self.folder / NAME
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        begun = state["origin"] if isinstance(state["origin"], dict) else {}
        other = [name for name, value in self._origin().items() if begun.get(name) != value]
        if other:
            raise ValueError(
                f"{path} is of another {' and another '.join(other)} (begun with "
                f"{_shown(begun)}, now {_shown(self._origin())}): remove it, or go on as it was "
                "begun."
            )
        return state

    def _origin(self) -> dict[str, Any]:
        """What a state belongs to: the configuration, and all that the last bits depend on.

        What one version of the code has begun, another is not to finish: the result would be of
        neither.
        """
        return {
            "configuration": json.dumps(self.config.to_dict(), sort_keys=True),
            "commit": commit(),
            "number of processes": self.team.size,
            "number of threads": self.threads,
            "kind of device": self.team.device.type,
        }


def _shown(origin: Mapping[str, Any]) -> str:
    """All but the configuration, which is long."""
    rest = (f"{name} {value}" for name, value in origin.items() if name != "configuration")
    return ", ".join(rest) or "nothing known"
