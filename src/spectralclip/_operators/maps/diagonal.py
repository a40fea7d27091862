"""Maps that mix nothing: identities, one factor for all, and one factor a channel."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import sum_of_squares
from spectralclip._operators.blocks import BlockForm, RepeatedBlocks
from spectralclip._operators.maps.base import Layout, LinearMap


@final
class IdentityMap(LinearMap):
    """Reshaping, dropout in evaluation, and everything else that changes no number."""

    is_identity, rounding_terms = True, 2.0

    def __init__(self, source: Shape, target: Shape, channels_last: bool) -> None:
        keep = channels_last and source == target
        self.source, self.target = Layout(source, keep), Layout(target, keep)
        self.keeps_positions = source == target
        self.channel_groups = 0 if self.keeps_positions else 1

    def forward(self, rows: Tensor) -> Tensor:
        return rows.clone()  # callers may write into what they get

    adjoint = forward

    def frobenius_sq(self) -> float | None:
        return float(self.source.size)

    def absolute_norm(self, device: torch.device) -> float:
        return 1.0


@final
class ScalarMap(LinearMap):
    """One factor for all."""

    keeps_positions, channel_groups, rounding_terms = True, 0, 2.0

    def __init__(self, factor: float, layout: Layout) -> None:
        self.factor = factor
        self.source = self.target = layout

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.factor

    adjoint = forward

    def transpose(self) -> LinearMap:
        return self

    def frobenius_sq(self) -> float | None:
        return self.factor**2 * self.source.size

    def absolute_norm(self, device: torch.device) -> float:
        return abs(self.factor)


@final
class DiagonalMap(LinearMap):
    """One factor a channel: batch norm with its running statistics."""

    channel_factors: Tensor
    keeps_positions, channel_groups, rounding_terms = True, 0, 2.0

    def __init__(self, factors: Tensor, shape: Shape, channels_last: bool) -> None:
        self.weight = self.channel_factors = factors
        self.source = self.target = Layout(shape, channels_last)
        repeats = math.prod(shape[1:])
        self._sizes = factors.numel(), repeats
        self._row = factors.repeat(repeats) if channels_last else factors.repeat_interleave(repeats)

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self._row

    adjoint = forward

    def transpose(self) -> LinearMap:
        return self

    def with_weight(self, weight: Tensor) -> LinearMap:
        return DiagonalMap(weight, self.source.shape, self.source.channels_last)

    def scaled(self, outputs: Tensor | None, inputs: Tensor | None) -> LinearMap | None:
        factors = self.channel_factors
        for more in (outputs, inputs):
            factors = factors if more is None else factors * more
        return self.with_weight(factors)

    def block_form(self) -> BlockForm:
        return RepeatedBlocks(self, *self._sizes)

    def frobenius_sq(self) -> float | None:
        factors = self.channel_factors
        return self.source.size / factors.numel() * sum_of_squares(factors)

    def absolute_norm(self, device: torch.device) -> float:
        return float(self.channel_factors.abs().max())
