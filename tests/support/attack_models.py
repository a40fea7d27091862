"""Models for the tests of attacks: linear ones, whose answers are known, and a trained one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn import functional

from experiments.attacks import carlini_wagner_l2, pgd_linf
from spectralclip.demo import load_digits

Attack = Callable[..., Tensor]
Digits = tuple[nn.Module, Tensor, Tensor]


def seeded_pgd(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return pgd_linf(model, images, labels, generator=torch.Generator().manual_seed(3), **options)


def some_pgd(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return seeded_pgd(model, images, labels, **{"eps": 0.05, "steps": 10} | options)


def some_cw(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Tensor:
    usual = {"confidence": 0.1, "iterations": 30, "initial_const": 10.0}
    return carlini_wagner_l2(model, images, labels, **usual | options)


ATTACKS = pytest.mark.parametrize("attack", [some_pgd, some_cw])


def wrong(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        scores: Tensor = model(images)
    return scores.argmax(1) != labels


class Normalize(nn.Module):
    """As the models of the study begin."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([mean], dtype=torch.float64))
        self.register_buffer("std", torch.tensor([std], dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class Halves(NamedTuple):
    """Two classes divided by a hyperplane, and images on both sides.

    `normal` points out of the class of each image, in pixels; `lead` is the score of the class
    above the other's.
    """

    model: nn.Module
    images: Tensor
    labels: Tensor
    normal: Tensor
    lead: Tensor


def halves(
    low: float = 0.3, high: float = 0.7, mean: float = 0.0, std: float = 1.0, count: int = 40
) -> Halves:
    """A linear model in float64, and images with pixels from low to high, all of them right."""
    make = torch.Generator().manual_seed(7)
    images = torch.rand(count, 1, 5, 5, generator=make, dtype=torch.float64)
    images = low + (high - low) * images
    dense = nn.Linear(25, 2).double()
    # Through the middle of the images, so that each class has about half of them.
    with torch.no_grad():
        dense.weight.copy_(torch.randn(2, 25, generator=make, dtype=torch.float64))
        dense.bias.copy_(-dense.weight @ ((images.mean(0).flatten() - mean) / std))
    parts = OrderedDict(normalize=Normalize(mean, std), flat=nn.Flatten(), dense=dense)
    model = nn.Sequential(parts).eval()
    with torch.no_grad():
        scores = model(images)
    labels = scores.argmax(1)
    weight = (dense.weight[1] - dense.weight[0]).detach() / std
    normal = torch.where(labels[:, None] == 0, weight, -weight).reshape(images.shape)
    return Halves(model, images, labels, normal, (scores[:, 0] - scores[:, 1]).abs())


def trained(count: int, dtype: torch.dtype = torch.float32) -> Digits:
    """A small convolutional network that learned some digits, and the first test digits.

    The same on every call. In float64 the order of additions turns no sign of a slope.
    """
    images, labels = load_digits("train")
    with seeded(1):
        parts = OrderedDict(
            normalize=Normalize(0.1307, 0.3081).float(),
            first=nn.Conv2d(1, 8, 5, stride=2),
            relu=nn.ReLU(),
            second=nn.Conv2d(8, 16, 5, stride=2),
            relu2=nn.ReLU(),
            flat=nn.Flatten(),
            dense=nn.Linear(256, 10),
        )
        model = nn.Sequential(parts)
        order = torch.randperm(len(images))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for part in order.split(100):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    optimizer.zero_grad()
    images, labels = load_digits("test", dtype=dtype)
    return model.eval().to(dtype), images[:count], labels[:count]


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Between images, in the L2 norm."""
    return (first - second).flatten(1).square().sum(1).sqrt()
