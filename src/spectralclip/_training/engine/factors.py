"""Batch norms alone, whose singular values are their factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from spectralclip._training.engine.constrained_layer import BatchNorm
from spectralclip._training.engine.group import Group, Move, stacked


@final
class Factors(Group):
    """Batch norms of equally many channels: each factor is clamped by itself, exactly."""

    kernels = 1

    def __init__(self, norms: Mapping[str, BatchNorm]) -> None:
        self.names, self._norms = tuple(norms), list(norms.values())
        self.state = {"weights": torch.zeros_like(stacked(self.parameters()[0]))}

    def parameters(self) -> list[list[Tensor]]:
        weights = [norm._parameters["weight"] for norm in self._norms]
        return [[weight for weight in weights if weight is not None]]

    def read(self) -> Tensor:
        variances = stacked([norm.running_var for norm in self._norms])  # type: ignore[misc]
        self._stored = stacked(self.parameters()[0])
        self._scales = self._stored * torch.rsqrt(variances + self._norms[0].eps)
        self.peak = self._scales.abs().amax(1)
        return self.peak

    def normalize(self, unit: Tensor, bound: Tensor, is_sound: Tensor) -> None:
        self._bound = bound[:, None]
        self._weights = torch.where(is_sound[:, None], self._stored, self.state["weights"])

    def move(self, step: Move) -> list[Tensor]:
        share = self._bound / self._scales.abs()
        is_above = (share < 1) & step.is_touched[:, None]
        moved = torch.where(is_above, self._stored * share, self._stored)
        self.state["weights"].copy_(moved)
        return [moved]

    def old(self) -> list[Tensor]:
        return [self._stored]
