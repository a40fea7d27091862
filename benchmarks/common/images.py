"""Images to train and to test with, and what a network makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.attacks import pgd_linf, robust_accuracy
from experiments.data import Dataset, crop_and_flip, load, subset

Labelled = tuple[Tensor, Tensor]  # images of bytes, and their classes
PGD_EPS, PGD_STEPS, PGD_STRIDE = 2 / 255, 20, 0.25 * 2 / 255
QUICK_IMAGES = (1000, 200)  # to train and to test with
CHUNK = 250  # images that go through a network together


@lru_cache
def data(name: str, folder: Path) -> Dataset:
    """The images, read once in each process."""
    found = load(name, folder)
    return subset(found, *QUICK_IMAGES) if name == "synthetic" else found


def held_out(dataset: Dataset, count: int) -> tuple[Labelled, Labelled]:
    """Images to train and to test with: the training images without the last ones, and these.

    With a count of zero, all of them, and the test images.
    """
    images, labels = dataset.train_images, dataset.train_labels
    if not count:
        return (images, labels), (dataset.test_images, dataset.test_labels)
    return (images[:-count], labels[:-count]), (images[-count:], labels[-count:])


def batches(
    part: Labelled, size: int, generator: torch.Generator, shift: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels in [0, 1], shifted and mirrored, without end: each image once in an epoch."""
    images, labels = part
    while True:
        order = torch.randperm(len(labels), generator=generator)
        for chosen in order[: len(order) // size * size].split(size):
            moved = crop_and_flip(images[chosen], generator, padding=shift)
            yield moved.float() / 255, labels[chosen]


@torch.no_grad()
def scores_of(model: nn.Module, images: Tensor) -> Tensor:
    """What the network says of images of bytes, in evaluation."""
    model.eval()
    return torch.cat([model(chunk.float() / 255) for chunk in images.split(CHUNK)])


def accuracy(model: nn.Module, tests: Labelled) -> float:
    """The share that the network gets right, in evaluation."""
    images, labels = tests
    return float((scores_of(model, images).argmax(1) == labels).double().mean())


def attacked(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Accuracy under projected gradient descent in the l-infinity norm."""
    pixels = images.float() / 255
    moved = pgd_linf(
        model,
        pixels,
        labels,
        eps=PGD_EPS,
        steps=PGD_STEPS,
        step_size=PGD_STRIDE,
        generator=torch.Generator().manual_seed(0),
        batch=CHUNK,
    )
    return robust_accuracy(model, pixels, moved, labels, batch=CHUNK)
