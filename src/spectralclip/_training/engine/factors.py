"""Batch norms alone, whose singular values are their factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from spectralclip._training.engine.constrained_layer import BatchNorm
from spectralclip._training.engine.group import Found, Group, Kind, finite, joined, stacked


@final
class Factors(Group):
    """Batch norms of equally many channels."""

    kernels, is_seen_whole = 1, True

    def __init__(self, norms: Mapping[str, BatchNorm]) -> None:
        self.names, self._norms, self.state = tuple(norms), list(norms.values()), {}

    def parameters(self) -> list[list[Tensor]]:
        weights = [norm._parameters["weight"] for norm in self._norms]
        return [[weight for weight in weights if weight is not None]]

    def read(self) -> Tensor:
        variances = stacked([norm.running_var for norm in self._norms])  # type: ignore[misc]
        stack = stacked(self.parameters()[0])
        scales = (stack * torch.rsqrt(variances + self._norms[0].eps)).abs()
        self._stored, self._scales = stack, finite(scales)
        return scales

    def normalize(self, unit: Tensor, bound: Tensor, is_finite: bool) -> None:
        self.peaks = self._scales.amax(1) * unit

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        limit = cuts[:, None]
        share = (limit / self._scales).clamp(max=1.0)
        return [self._stored * share.masked_fill(limit == 0, 1)]


@final
class Clamps(Kind):
    """All batch norms: each factor is clamped by itself, exactly."""

    def __init__(self, groups: Sequence[Factors]) -> None:
        self.groups: Sequence[Factors] = list(groups)

    def refresh(self) -> None:
        """All is known."""

    def norms(self) -> Tensor:
        return joined([group.peaks for group in self.groups])

    def find(self, target: Tensor, most: Tensor) -> Found:
        norms = self.norms()
        return Found(torch.ones_like(norms), norms > target, target)
