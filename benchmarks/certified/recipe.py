"""What is the same for all: the network, its loss and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.data import Dataset
from spectralclip import margin_cross_entropy
from spectralclip.nn import CenterNorm, MaxMin

LayerType = Callable[..., nn.Module]
LIPSCHITZ = 1.0  # what networks are held at, and what the loss assumes


@dataclass(frozen=True)
class Recipe:
    """Network and training; the number of steps and the learning rate are not part of it."""

    channels: tuple[int, ...] = (32, 64, 128)  # of the stages, each on half the side of the last
    depths: tuple[int, ...] = (2, 2, 3)  # convolutions in each stage
    center: bool = False  # a CenterNorm after each convolution
    # Networks that are held at 1 do not learn images by heart in so short a time: to move images,
    # which keeps others from that, makes them harder to learn and no more.
    shift: int = 0  # pixels by which images are moved at most, besides being mirrored
    radius: float = 0.25  # the margin that the loss asks for, in pixels
    temperature: float = 0.125
    batch: int = 128
    warm_up: float = 0.1  # share of the steps in which the rate rises; then it falls to zero


QUICK = Recipe(channels=(8, 8, 8), depths=(1, 1, 1), batch=32)


class Shift(nn.Module):
    """Subtracts a constant from each channel of the pixels, which keeps all distances."""

    def __init__(self, mean: tuple[float, ...]) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


def network(
    recipe: Recipe, dataset: Dataset, conv: LayerType = nn.Conv2d, dense: LayerType = nn.Linear
) -> nn.Sequential:
    """From pixels in [0, 1] to scores: nothing is scaled, so that distances are those of images."""
    channels, side, _ = dataset.in_shape
    layers: list[nn.Module] = [Shift(dataset.mean)]
    for width, depth in zip(recipe.channels, recipe.depths, strict=True):
        layers.append(nn.PixelUnshuffle(2))
        channels, side = 4 * channels, side // 2
        for _ in range(depth):
            layers.append(conv(channels, width, 3, padding=1, bias=not recipe.center))
            layers += [CenterNorm(width)] if recipe.center else []
            layers.append(MaxMin())
            channels = width
    return nn.Sequential(*layers, nn.Flatten(), dense(channels * side**2, dataset.classes))


def loss_of(recipe: Recipe, scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy that asks for the margin."""
    return margin_cross_entropy(
        scores,
        labels,
        lipschitz=LIPSCHITZ,
        radius=recipe.radius,
        temperature=recipe.temperature,
    )


def schedule(recipe: Recipe, steps: int) -> Callable[[int], float]:
    """One cycle: the rate at each step, from 0 on, in parts of the largest."""
    peak = max(1, round(recipe.warm_up * steps))
    return lambda step: min((step + 1) / peak, (steps - step) / (steps - peak + 1))
