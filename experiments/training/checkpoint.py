"""The state of a run after an epoch, in one file that appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from experiments.training.config import TrainConfig
from experiments.training.team import Team
from spectralclip._atomic import replacing

NAME = "checkpoint.pt"


def save(folder: Path, config: TrainConfig, team: Team, state: dict[str, Any]) -> None:
    """Write the state; the first process does, and the others wait for it."""
    if team.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / NAME) as file:
            torch.save({"origin": _origin(config, team), **state}, file)
    team.wait()


def load(folder: Path, config: TrainConfig, team: Team) -> dict[str, Any] | None:
    """The state that was written, if there is one.

    Raises:
        ValueError: It is of another run.
    """
    path = folder / NAME
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state["origin"] != _origin(config, team):
        raise ValueError(
            f"{path} is of another configuration, or of another number of processes than "
            f"{team.size}: remove it, or go on as it was begun."
        )
    return state


def _origin(config: TrainConfig, team: Team) -> str:
    """What a state belongs to; the same bits need the same number of processes."""
    return json.dumps([config.to_dict(), team.size], sort_keys=True)
