"""Images to learn from where there is no data: a template for each class, and noise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.data._dataset import Dataset

CLASSES = 10
SIDE = 32


def load(train: int = 4000, test: int = 1000, seed: int = 0) -> Dataset:
    """Make 32x32 images in colour, of ten classes that take turns.

    A class is a smooth pattern; an image shows it with more or less contrast, under noise of about
    the same size. Networks learn them in a few steps, and attacks succeed at times.

    Args:
        train: How many training images.
        test: How many test images.
        seed: For everything; the training images do not depend on the number of test images.
    """
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(CLASSES, 3, 4, 4, generator=generator)
    templates = F.interpolate(coarse, size=SIDE, mode="bilinear", align_corners=True)
    parts = [_images(templates, count, generator) for count in (train, test)]
    (train_images, train_labels), (test_images, test_labels) = parts
    return Dataset(
        "synthetic",
        train_images,
        train_labels,
        test_images,
        test_labels,
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
        classes=CLASSES,
    )


def _images(templates: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % CLASSES
    contrast = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
    noise = torch.randn(count, *templates.shape[1:], generator=generator)
    pixels = 0.5 + 0.15 * contrast * templates[labels] + 0.15 * noise
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8), labels
