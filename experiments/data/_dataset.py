"""`Dataset`, and class-balanced parts of one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Labelled images, all in memory.

    Attributes:
        name: As `load` knows it.
        train_images: Pixels from 0 to 255, `(N, channels, height, width)`, uint8.
        train_labels: Their classes, `(N,)`, int64.
        test_images: As the others.
        test_labels: As the others.
        mean: Of each channel, for pixels from 0 to 1: what the model's first layer subtracts.
        std: Of each channel: what it divides by.
        classes: How many there are.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int = 10

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train_images.shape[1:]
        return int(channels), int(height), int(width)


def subset(
    dataset: Dataset, train: int | None, test: int | None, seed: int | None = None
) -> Dataset:
    """The first images of a data set, of each class as many as of the others.

    They come class by class in turn, so that the beginnings of what is returned are balanced too.
    Where a class has too few images, or the number does not divide, others take the places left.

    Args:
        dataset: The data set.
        train: How many training images; None for all, as they are.
        test: How many test images; None for all, as they are.
        seed: To shuffle the images of each class before the first are taken; None for the order
            of the files.

    Raises:
        ValueError: There are not as many images.
    """
    training = _balanced(dataset.train_labels, train, seed, f"training images of {dataset.name}")
    testing = _balanced(dataset.test_labels, test, seed, f"test images of {dataset.name}")
    return replace(
        dataset,
        train_images=dataset.train_images[training],
        train_labels=dataset.train_labels[training],
        test_images=dataset.test_images[testing],
        test_labels=dataset.test_labels[testing],
    )


def held_out(dataset: Dataset, count: int) -> Dataset:
    """The last training images in place of those to test with; all as it is for a count of zero.

    Raises:
        ValueError: There are not as many images.
    """
    images, labels = dataset.train_images, dataset.train_labels
    if not 0 <= count < len(labels):
        raise ValueError(f"expected to hold out fewer than {len(labels)} images, got {count}.")
    if not count:
        return dataset
    return replace(
        dataset,
        train_images=images[:-count],
        train_labels=labels[:-count],
        test_images=images[-count:],
        test_labels=labels[-count:],
    )


def _balanced(labels: Tensor, count: int | None, seed: int | None, what: str) -> Tensor | slice:
    if count is None:
        return slice(None)
    if not 0 < count <= len(labels):
        raise ValueError(f"expected from 1 to {len(labels)} {what}, got {count}.")
    order = torch.arange(len(labels))
    if seed is not None:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = labels[order]
    # How many of its own class come before each image: sorted by that, classes take turns.
    by_class = torch.argsort(shuffled, stable=True)
    sizes = torch.bincount(shuffled)
    starts = (sizes.cumsum(0) - sizes)[shuffled[by_class]]
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(labels)) - starts
    return order[torch.argsort(rank, stable=True)[:count]]
