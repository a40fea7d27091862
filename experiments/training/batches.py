"""Batches of an epoch: which images, in which order, moved how. All from the seed and the epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from experiments.data.augment import crop_and_flip
from experiments.training.config import TrainConfig

if TYPE_CHECKING:
    from experiments.data import Dataset

# Batch norms of one image have no statistics to speak of.
SMALLEST_SHARE = 2


def generator(*origin: object) -> torch.Generator:
    """A source of random numbers that depends on these values alone."""
    digest = hashlib.sha256(repr(origin).encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big"))


def pixels(images: Tensor, config: TrainConfig, device: torch.device) -> Tensor:
    """Bytes as the model takes them: floating point numbers in [0, 1]."""
    return images.to(device).to(torch.float32, memory_format=config.layout) / 255


def count(config: TrainConfig, images: int, processes: int) -> int:
    """How many batches an epoch has. A rest too small to be shared is left out."""
    rest = images % config.batch
    found = images // config.batch + (rest >= SMALLEST_SHARE * processes)
    if not found:
        raise ValueError(
            f"an epoch needs at least {SMALLEST_SHARE} training images for each of {processes} "
            f"processes, got {images}: raise train_images."
        )
    return found


def batches(
    data: Dataset, config: TrainConfig, epoch: int, processes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch, counted from 0, as bytes and labels, the same in every process."""
    images = len(data.train_images)
    order = torch.randperm(images, generator=generator(config.seed, "order", epoch))
    for index in range(count(config, images, processes)):
        chosen = order[index * config.batch : (index + 1) * config.batch]
        batch = data.train_images[chosen]
        if config.augment:
            # For the whole batch, so that it is the same however many processes share it.
            batch = crop_and_flip(batch, generator(config.seed, "augment", epoch, index))
        yield batch, data.train_labels[chosen]
