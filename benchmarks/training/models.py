"""The models that are trained: plain, and ignorant of what keeps their norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
Padding = Literal["zeros", "circular", "reflect", "replicate"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)
CHANNELS = (24, 32, 48)  # of the small convnet: a step of batch 64 takes about 20 ms


def seeded(make: Callable[[], Model], seed: int) -> Model:
    """A model as torch initializes it, from a seed; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def small_convnet(
    padding: Padding = "zeros", channels: tuple[int, int, int] = CHANNELS
) -> nn.Module:
    """Three convolutions with strides 1, 2, 2 and a dense layer, for 28x28 digits."""
    first, second, third = channels
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1, padding_mode=padding),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, stride=2, padding=1, padding_mode=padding),
        nn.ReLU(),
        nn.Conv2d(second, third, 3, stride=2, padding=1, padding_mode=padding),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(49 * third, 10),
    )


def three_convolutions() -> nn.Module:
    """Equal ones of 16 channels, for 16x16 images, and a dense layer."""
    layers: list[nn.Module] = []
    for c_in in (3, 16, 16):
        layers += [nn.Conv2d(c_in, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def mlp() -> nn.Module:
    """Three dense layers, for 28x28 digits: a step of batch 64 takes about a millisecond."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int, halve: bool) -> None:
        super().__init__()
        self.halve = halve
        self.branch = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.shortcut = _shortcut(c_in, c_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + self.shortcut(x)
        return torch.relu(total / 2 if self.halve else total)


class Bottleneck(nn.Module):
    """A 3x3 convolution of a quarter of the channels between two of 1x1, beside a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int, halve: bool) -> None:
        super().__init__()
        self.halve, inner = halve, c_out // 4
        self.branch = nn.Sequential(
            nn.Conv2d(c_in, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.shortcut = _shortcut(c_in, c_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + self.shortcut(x)
        return torch.relu(total / 2 if self.halve else total)


def _shortcut(c_in: int, c_out: int, stride: int) -> nn.Module:
    """Nothing, or a 1x1 convolution where the shape changes."""
    if stride == 1 and c_in == c_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))


def resnet18(width: int = 64, halve: bool = False, classes: int = 10) -> nn.Module:
    """ResNet-18 for 32x32 images: a 3x3 stem, no pooling before the end.

    Args:
        width: Channels of the first stage; they double at each of the three others.
        halve: Divide the sum of branch and shortcut by two, so that a block's Lipschitz
            constant is at most the larger one of theirs.
        classes: Outputs.
    """
    return _resnet(Block, (2, 2, 2, 2), width, width, halve, classes)


def resnet34(width: int = 64, halve: bool = False, classes: int = 10) -> nn.Module:
    """ResNet-34 for 32x32 images: more of the same blocks."""
    return _resnet(Block, (3, 4, 6, 3), width, width, halve, classes)


def resnet50(width: int = 64, halve: bool = False, classes: int = 10) -> nn.Module:
    """ResNet-50 for 32x32 images: as many bottlenecks, of four times the channels."""
    return _resnet(Bottleneck, (3, 4, 6, 3), width, 4 * width, halve, classes)


def _resnet(
    block: Callable[[int, int, int, bool], nn.Module],
    depths: tuple[int, ...],
    width: int,
    first: int,
    halve: bool,
    classes: int,
) -> nn.Module:
    """A stem of `width` channels, and stages of blocks with `first` channels, twice that, ..."""
    blocks = []
    c_in = width
    for stage, depth in enumerate(depths):
        c_out = first * 2**stage
        for index in range(depth):
            blocks.append(block(c_in, c_out, 2 if stage and not index else 1, halve))
            c_in = c_out
    stem = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )
    return nn.Sequential(
        stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c_in, classes)
    )


def stack(layers: int, channels: int) -> nn.Sequential:
    """Equal convolutions, one behind another."""
    convolutions = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(layers)]
    return nn.Sequential(*convolutions)


def alone(channels: int) -> nn.Sequential:
    """One convolution."""
    return stack(1, channels)
