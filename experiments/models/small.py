"""The small network: one convolution and one dense layer, in the four settings of the paper."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models._parts import ImageData, normalization
from experiments.models.normalize import Normalize


class Setting(NamedTuple):
    """How the convolution is done.

    Attributes:
        kernel: Its size.
        stride: Its stride.
        padding_mode: What the pixels around the image are; there are so many of them that the
            size stays the same, up to the stride.
    """

    kernel: int
    stride: int
    padding_mode: Literal["zeros", "reflect", "replicate"]


SETTINGS = {
    1: Setting(kernel=3, stride=1, padding_mode="reflect"),
    2: Setting(kernel=3, stride=1, padding_mode="zeros"),
    3: Setting(kernel=3, stride=2, padding_mode="zeros"),
    4: Setting(kernel=5, stride=2, padding_mode="replicate"),
}
USUAL = 2


class SmallNetwork(nn.Module):
    """A convolution, batch norm or not, ReLU, and a dense layer.

    Args:
        data: What the images are like.
        width: Channels of the convolution; 64 in the paper.
        batch_norm: Whether a batch norm follows the convolution.
        setting: One of the four, from 1.
    """

    def __init__(self, data: ImageData, width: int, batch_norm: bool, setting: int) -> None:
        super().__init__()
        channels, height, across = data.in_shape
        kernel, stride, mode = SETTINGS[setting]
        self.normalize = Normalize(data.mean, data.std)
        self.conv = nn.Conv2d(
            channels, width, kernel, stride, kernel // 2, padding_mode=mode, bias=False
        )
        self.bn = normalization(width, batch_norm)
        pixels = -(-height // stride) * -(-across // stride)
        self.linear = nn.Linear(width * pixels, data.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(self.normalize(images))))
        scores: Tensor = self.linear(x.flatten(1))
        return scores
