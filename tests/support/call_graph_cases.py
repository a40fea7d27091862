"""Small models whose calls are watched: made of a function, or a residual network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import train_batch_norm
from torch import Tensor, nn

from spectralclip import find_layers

SMALL_IMAGES = torch.linspace(-1, 1, 2 * 2 * 6 * 6).reshape(2, 2, 6, 6)


def conv(size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(2, 2, size, padding=size // 2)


def norm() -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(2)
    train_batch_norm(layer)
    return layer


class Model(nn.Module):
    """Some modules, and a function of them and the input."""

    def __init__(self, run: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def names(
    model: nn.Module, x: Any = SMALL_IMAGES, compose: Any = "conv_bn", **options: Any
) -> list[str]:
    return list(find_layers(model, x, compose, **options))


class Block(nn.Module):
    """A residual block as everybody writes it."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def resnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        *(Block(4, 4, 1), Block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
