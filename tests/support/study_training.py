"""A short training, and ways to kill it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

from experiments.experiment import Context
from experiments.training import train

ROOT = Path(__file__).parents[2]
BATCHES, EPOCHS = 3, 3
CONFIG: dict[str, Any] = {
    "label": "for readers",
    "dataset": "digits",
    "model": "small",
    "width": 3,
    "setting": 3,
    "batch_norm": True,
    "epochs": EPOCHS,
    "train_images": 48,
    "test_images": 40,
    "batch": 16,
    "lr": 0.1,
    "lr_step": 2,
    "augment": True,
    "seed": 5,
    "attacks": {
        "pgd": {"eps": 0.1, "steps": 3, "images": 20},
        "cw": {"confidence": 0.1, "iterations": 3, "initial_const": 0.1, "images": 10, "lr": 0.01},
    },
    "measure": "compositions",
}
ADAM = {"optimizer": "adam", "lr": 2e-3, "augment": False}
# Those with a memory of their own, those that parametrize, a penalty, and two at once; their
# periods are short enough for rounds to happen on both sides of where a run is cut.
RESUMED = {
    "none": {},
    "miyato": {},
    "miyato+bn": ADAM,
    "gouk+bn": {},
    "farnia": {},
    "senderovich:every=2": {},
    "delattre": {},
    "fast_clip:every=2": {},
    "fast_clip_concat:every=2,concat_every=3": {},
    "spectral_clip": {"max_norm": 0.5},
    "spectral_clip_conv_bn": ADAM,
    "parametrize:check_every=4": {"max_norm": 0.5},
    "lot": {},
}
# These do what others of the list do.
ALIKE = ("miyato+bn", "gouk+bn", "farnia", "fast_clip:every=2", "spectral_clip_conv_bn")


class Killed(BaseException):
    """As sudden as Ctrl-C."""


def killer(call: int) -> Callable[[float, str], None]:
    """Progress that is cut off at its n-th report."""
    reports = []

    def say(share: float, words: str) -> None:
        reports.append(share)
        if len(reports) == call:
            raise Killed

    return say


def begun(folder: Path, **changes: Any) -> dict[str, Any]:
    """One call of `train`; `kill` ends it at a report of progress."""
    say = killer(changes.pop("kill", 0))
    context = Context(data=None, scratch=folder, threads=1, say=say)
    return train({**CONFIG, **changes}, context)


def weights(folder: Path) -> list[tuple[str, torch.Tensor]]:
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    return sorted(state.items())


def text(outcome: dict[str, Any]) -> str:
    return json.dumps(outcome["result"], allow_nan=False, sort_keys=True)
