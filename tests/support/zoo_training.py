"""Networks to train in tests: plain, narrow, and ignorant of what keeps their norms.

Each comes with batch norm and without. ResNet-18 and DLA have the layers of their CIFAR variants,
one for one; only the channels are few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn import functional as F


def conv_norm(source: int, target: int, size: int, stride: int, norm: bool) -> nn.Sequential:
    """A convolution that keeps the image's size up to its stride, and batch norm behind it."""
    conv = nn.Conv2d(source, target, size, stride, padding=size // 2, bias=not norm)
    return nn.Sequential(conv, nn.BatchNorm2d(target)) if norm else nn.Sequential(conv)


class Block(nn.Module):
    """Two convolutions beside a shortcut; their sum is halved, as the paper's models have it."""

    def __init__(self, source: int, target: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.first = conv_norm(source, target, 3, stride, norm)
        self.second = conv_norm(target, target, 3, 1, norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or source != target:
            self.shortcut = conv_norm(source, target, 1, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(x)))
        return F.relu((y + self.shortcut(x)) / 2)


def resnet18(norm: bool, width: int = 2) -> nn.Module:
    """Four stages of two blocks, for 32x32 images."""
    blocks, source = [], width
    for stage in range(4):
        target = width * 2**stage
        blocks += [Block(source, target, 1 + (stage > 0), norm), Block(target, target, 1, norm)]
        source = target
    stem = [conv_norm(3, width, 3, 1, norm), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, 10)]
    return nn.Sequential(*stem, *blocks, *head)


class Root(nn.Module):
    """The images of several nodes next to each other, mixed by a 1x1 convolution."""

    def __init__(self, source: int, target: int, norm: bool) -> None:
        super().__init__()
        self.mix = conv_norm(source, target, 1, 1, norm)

    def forward(self, *images: Tensor) -> Tensor:
        return F.relu(self.mix(torch.cat(images, 1)))


class Tree(nn.Module):
    """Deep layer aggregation: two nodes at the leaves, and a root that reads all nodes."""

    def __init__(self, source: int, target: int, level: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.before = Block(source, target, stride, norm) if level > 1 else None
        self.subtrees = nn.ModuleList(
            Tree(source if index == level - 1 else target, target, index, stride, norm)
            for index in reversed(range(1, level))
        )
        inner = target if level > 1 else source
        self.left = Block(inner, target, 1 if level > 1 else stride, norm)
        self.right = Block(target, target, 1, norm)
        nodes = 2 + len(self.subtrees) + (self.before is not None)
        self.root = Root(nodes * target, target, norm)

    def forward(self, x: Tensor) -> Tensor:
        nodes = [] if self.before is None else [self.before(x)]
        for subtree in self.subtrees:
            x = subtree(x)
            nodes.append(x)
        left = self.left(x)
        return self.root(*nodes, left, self.right(left))


def dla(norm: bool, width: int = 2) -> nn.Module:
    """Three convolutions and four trees, two of them of two levels, for 32x32 images."""
    first = [conv_norm(3, width, 3, 1, norm), nn.ReLU()]
    second = [conv_norm(width, width, 3, 1, norm), nn.ReLU()]
    third = [conv_norm(width, 2 * width, 3, 1, norm), nn.ReLU()]
    trees = [
        Tree(2 * width, 3 * width, 1, 1, norm),
        Tree(3 * width, 3 * width, 2, 2, norm),
        Tree(3 * width, 4 * width, 2, 2, norm),
        Tree(4 * width, 4 * width, 1, 2, norm),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*first, *second, *third, *trees, *head)


def convnet(norm: bool) -> nn.Module:
    """All four paddings, with and without a stride, and a dense layer, for 12x12 images."""

    def layers(source: int, target: int, stride: int, padding: str) -> list[nn.Module]:
        conv = nn.Conv2d(source, target, 3, stride, padding=1, padding_mode=padding)
        return [conv, *([nn.BatchNorm2d(target)] if norm else []), nn.ReLU()]

    return nn.Sequential(
        *layers(3, 4, 1, "zeros"),
        *layers(4, 4, 1, "circular"),
        *layers(4, 5, 2, "reflect"),
        *layers(5, 4, 1, "replicate"),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 10),
    )


@dataclass(frozen=True)
class Trainee:
    """A network, and how to make it and its batches.

    Attributes:
        name: For the ids of tests.
        build: Makes it, with batch norm or without.
        norm: Whether it has batch norm.
        side: Of its images.
    """

    name: str
    build: Callable[[bool], nn.Module]
    norm: bool
    side: int

    def model(self, seed: int = 3) -> nn.Module:
        """The network in training mode, the same for the same seed."""
        with seeded(seed):
            return self.build(self.norm).train()

    def batch(self, index: int, size: int = 4) -> tuple[Tensor, Tensor]:
        """Images and labels, the same for the same step of every run."""
        generator = torch.Generator().manual_seed(index)
        images = torch.randn(size, 3, self.side, self.side, generator=generator)
        return images, torch.randint(10, (size,), generator=generator)

    def __str__(self) -> str:
        return self.name


TRAINEES = {
    trainee.name: trainee
    for kind, build, side in (
        ("convnet", convnet, 12),
        ("resnet18", resnet18, 32),
        ("dla", dla, 32),
    )
    for trainee in (
        Trainee(f"{kind}-bn", build, True, side),
        Trainee(f"{kind}-plain", build, False, side),
    )
}
