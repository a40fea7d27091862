"""The first layer of every model: from pixels to what networks like to see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Subtract a mean and divide by a deviation, channel by channel.

    As a layer of the model it is part of what is attacked and bounded: an attack of size eps is
    one of size eps in pixels.

    Args:
        mean: Of each channel, for pixels from 0 to 1.
        std: Of each channel, positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ValueError(
                f"expected a mean and a positive std for each channel, got mean {tuple(mean)} and "
                f"std {tuple(std)}."
            )
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images `(N, channels, height, width)` with pixels from 0 to 1."""
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        """The numbers, for `print`."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"
