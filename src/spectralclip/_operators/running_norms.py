"""Norms that normalize in a way of their own while training, and what they are in evaluation.

Maps need to know the latter alone. So the evaluation of such a norm stands here, and what it does
with a batch in `spectralclip.nn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor, nn


class RunningBatchNorm(nn.modules.batchnorm._BatchNorm, ABC):
    """In evaluation torch's batch norm: one factor a channel, from `running_var` and `weight`."""

    weight: nn.Parameter | None  # type: ignore[assignment]
    bias: nn.Parameter | None  # type: ignore[assignment]

    def forward(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of the batch while training, else by the running ones."""
        self._check_input_dim(input)
        if self.training or self.running_mean is None:
            return self.by_batch(input)
        statistics = self.running_mean, self.running_var
        return F.batch_norm(input, *statistics, self.weight, self.bias, False, 0.0, self.eps)

    @abstractmethod
    def by_batch(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of the batch, and take note of them."""

    @abstractmethod
    def _check_input_dim(self, input: Tensor) -> None:
        """Raise unless the input has the shape that is expected."""


class RunningShift(nn.Module, ABC):
    """In evaluation a shift of each channel, from `running_mean` and `bias`: a map of norm 1."""

    running_mean: Tensor | None
    bias: nn.Parameter | None

    def forward(self, input: Tensor) -> Tensor:
        """Centre by the means of the batch while training, else by the running ones."""
        self._check_input_dim(input)
        if self.training or self.running_mean is None:
            return self.by_batch(input)
        shift = -self.running_mean if self.bias is None else self.bias - self.running_mean
        return (input + on_channels(shift, input)).to(input.dtype)

    @abstractmethod
    def by_batch(self, input: Tensor) -> Tensor:
        """Centre by the means of the batch, and take note of them."""

    @abstractmethod
    def _check_input_dim(self, input: Tensor) -> None:
        """Raise unless the input has the shape that is expected; named as in torch."""


def on_channels(values: Tensor, input: Tensor) -> Tensor:
    """One value a channel, in the shape that an input `(N, C, ...)` can be added to."""
    return values.reshape(1, -1, *[1] * (input.ndim - 2))
