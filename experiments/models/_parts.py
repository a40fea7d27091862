"""What the models are made of, and what they are told of the images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional as F


class ImageData(Protocol):
    """What a model has to know of a data set; a `Dataset` says it."""

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Of each channel, for pixels from 0 to 1."""

    @property
    def std(self) -> tuple[float, ...]:
        """Of each channel."""

    @property
    def classes(self) -> int:
        """How many there are."""


@dataclass(frozen=True)
class Inputs:
    """The same without a data set, for models that are only looked at."""

    in_shape: tuple[int, int, int] = (3, 32, 32)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    classes: int = 10


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution with zero padding that keeps the size, up to its stride; without a bias.

    Where batch norm is taken out nothing comes in its place: there is no bias then either, as in
    the paper's own models.
    """
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def normalization(channels: int, batch_norm: bool) -> nn.Module:
    """Batch norm, or nothing in its place."""
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()


def shortcut(inputs: int, outputs: int, stride: int, batch_norm: bool) -> nn.Sequential:
    """The way around a block: nothing, or a 1x1 convolution where the shape changes.

    A block gives it the pixels that the stride leaves, and not the stride: with few channels, the
    backward pass of a strided 1x1 convolution in the layout channels last writes past the memory of
    oneDNN (uxlfoundation/oneDNN#6035). The process dies, or goes on with wrong numbers.
    """
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(convolution(inputs, outputs, 1), normalization(outputs, batch_norm))


def every(stride: int, x: Tensor) -> Tensor:
    """The pixels that a stride leaves, as means over one pixel each.

    The gradient of a slice has the default layout whatever that of `x`, and slows down all that it
    meets on its way back: by 5 % of a step of ResNet-18 (width 8) in the layout channels last.
    """
    return x if stride == 1 else F.avg_pool2d(x, 1, stride)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, and the sum of their output and the input, or the mean of both."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, batch_norm: bool, *, halved: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = normalization(outputs, batch_norm)
        self.conv2 = convolution(outputs, outputs, 3)
        self.bn2 = normalization(outputs, batch_norm)
        self.shortcut = shortcut(inputs, outputs, stride, batch_norm)
        self.stride, self.halved = stride, halved

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        both = self.bn2(self.conv2(inner)) + self.shortcut(every(self.stride, x))
        return F.relu(both / 2 if self.halved else both)
