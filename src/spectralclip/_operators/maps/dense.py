"""A matrix on the last axis."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import sum_of_squares
from spectralclip._operators.blocks import BlockForm, RepeatedBlocks
from spectralclip._operators.maps.base import Layout, LinearMap, geometric_mean_of_sums


@final
class DenseMap(LinearMap):
    """A matrix on the last axis, for each position of the leading axes."""

    weight: Tensor

    def __init__(self, weight: Tensor, leading: Shape = ()) -> None:
        self.weight, self.leading = weight, leading
        self.channel_axis = -1
        self.source = Layout((*leading, weight.shape[1]))
        self.target = Layout((*leading, weight.shape[0]))
        # Leading axes stand where channels stand elsewhere: a matrix does not mix them.
        self.channel_groups = 0 if leading else 1

    def forward(self, rows: Tensor) -> Tensor:
        images = rows.reshape(-1, self.weight.shape[1]) @ self.weight.T
        return images.reshape(rows.shape[0], self.target.size)

    def adjoint(self, rows: Tensor) -> Tensor:
        images = rows.reshape(-1, self.weight.shape[0]) @ self.weight
        return images.reshape(rows.shape[0], self.source.size)

    def with_weight(self, weight: Tensor) -> LinearMap:
        return DenseMap(weight, self.leading)

    def scaled(self, outputs: Tensor | None, inputs: Tensor | None) -> LinearMap | None:
        if self.leading and (outputs is not None or inputs is not None):
            return None  # a channel is a leading position there
        weight = self.weight if outputs is None else self.weight * outputs[:, None]
        return DenseMap(weight if inputs is None else weight * inputs, self.leading)

    def weight_gradients(self, U: Tensor, V: Tensor) -> Tensor:
        left = U.reshape(U.shape[0], -1, self.weight.shape[0])
        right = V.reshape(V.shape[0], -1, self.weight.shape[1])
        return left.mT @ right

    def block_form(self) -> BlockForm:
        return RepeatedBlocks(self, 1, math.prod(self.leading))

    def frobenius_sq(self) -> float | None:
        return math.prod(self.leading) * sum_of_squares(self.weight)

    def reach(self, axis: int) -> Tensor:
        if axis < len(self.leading):
            return torch.eye(self.leading[axis], dtype=torch.bool, device="cpu")
        return super().reach(axis)

    def absolute_norm(self, device: torch.device) -> float:
        sizes = self.weight.abs()
        return geometric_mean_of_sums(sizes.sum(1), sizes.sum(0))

    @property
    def rounding_terms(self) -> float:
        return float(sum(self.weight.shape))
