"""Stages of single layers, for tests of the step's parts."""

from __future__ import annotations

from typing import Any

import torch
from seeds import seeded
from torch import Tensor, nn

from spectralclip import find_layers
from spectralclip._training.engine.build import stages_of
from spectralclip._training.engine.stage import Stage


def stage_of(
    layer: Any,
    in_shape: tuple[int, ...],
    *,
    bound: float = 1.0,
    warm: int = 60,
    compose: Any = "none",
) -> Stage:
    """The only stage of a model that is one layer, warm."""
    model = layer if isinstance(layer, nn.Sequential) else nn.Sequential(layer)
    found = find_layers(model, torch.zeros(2, *in_shape), compose)
    (stage,) = stages_of(found, 0.01, 2, 0)
    stage.bounds.fill_(bound)
    stage.is_active.fill_(True)
    with torch.no_grad():
        stage.warm_up(warm)
    return stage


def run(stage: Stage, rounds: int = 1, *, far: bool = False) -> None:
    """Step, and write what comes out to the parameters."""
    with torch.no_grad():
        for _ in range(rounds):
            for parameters, values in zip(stage.parameters(), stage.run(far=far), strict=True):
                for parameter, value in zip(parameters, values, strict=True):
                    parameter.copy_(value)


def of_seed(make: Any, seed: int = 0) -> Any:
    """A layer with weights of its own."""
    with seeded(seed):
        return make()


def norms(stage: Stage) -> Tensor:
    """Of each kernel, as it is now."""
    with torch.no_grad():
        return stage.norms()
