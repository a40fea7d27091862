"""What all attacks share: the space they move in, and the checks of what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from experiments.attacks._numbers import whole

Protocol = Literal["pixels", "paper"]


@dataclass(frozen=True)
class Space:
    """Where an attack moves: points from which pixels are `point * std + mean`.

    Under the protocol "pixels", mean is 0 and std is 1, and points are pixels to the last bit.
    """

    model: nn.Module
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, model: nn.Module, protocol: Protocol, like: Tensor) -> Space:
        """The space of a protocol, in the type and on the device of some images."""
        if protocol not in get_args(Protocol):
            raise ValueError(f'protocol must be "pixels" or "paper", got {protocol!r}.')
        if protocol == "pixels":
            return cls(model, like.new_zeros(()), like.new_ones(()))
        layer = getattr(model, "normalize", None)
        mean, std = getattr(layer, "mean", None), getattr(layer, "std", None)
        if mean is None or std is None:
            raise ValueError(
                f'protocol "paper" needs a layer `normalize` with `mean` and `std`, and '
                f'{type(model).__name__} has none: add one, or use protocol="pixels".'
            )
        return cls(model, _per_channel(mean, like), _per_channel(std, like))

    def points(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def pixels(self, points: Tensor) -> Tensor:
        return points * self.std + self.mean

    def scores(self, points: Tensor) -> Tensor:
        scores: Tensor = self.model(self.pixels(points))
        return scores


def _per_channel(values: object, like: Tensor) -> Tensor:
    numbers = torch.as_tensor(values, dtype=like.dtype, device=like.device)
    return numbers.reshape([1, -1] + [1] * (like.ndim - 2))


def check(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Refuse what an attack could only answer wrongly."""
    if model.training:
        raise ValueError(
            f"{type(model).__name__} is in training mode, where the images of a batch influence "
            "each other: call .eval() before the attack."
        )
    if not images.is_floating_point():
        raise TypeError(
            f"images must be floating point pixels in [0, 1], got {images.dtype}: divide bytes "
            "by 255."
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be one class for each of {len(images)} images, got shape "
            f"{tuple(labels.shape)}."
        )
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):
        raise ValueError(
            f"images must be pixels in [0, 1], got values from {float(images.min()):.4g} to "
            f"{float(images.max()):.4g}: normalization belongs into the model."
        )


@torch.no_grad()
def is_right(model: nn.Module, images: Tensor, labels: Tensor, batch: int) -> Tensor:
    """For each image, whether the model gives it its class."""
    whole("batch", batch)
    right = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        scores = model(images[part])
        if not scores.isfinite().all():
            raise ValueError(
                f"{type(model).__name__} gives scores that are not finite, for which no attack "
                "means anything: look for where its training diverged."
            )
        right[part] = scores.argmax(1) == labels[part]
    return right
