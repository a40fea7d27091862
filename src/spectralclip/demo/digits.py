"""A small part of MNIST, bundled with the package, so that examples need no download."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

__all__ = ["load_digits"]

Split = Literal["train", "test"]


def load_digits(
    split: Split = "train", *, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Load real handwritten digits from the package itself.

    Both splits are balanced: the training split holds 400 digits of each class of MNIST's
    training set, the test split 100 of each class of its test set. They are the first of
    their class, in the order of the original files. Source and licence are in
    `data/DIGITS_LICENSE.md`, beside this module.

    Args:
        split: `"train"` (4,000 digits) or `"test"` (1,000 digits).
        dtype: The floating point type of the images.

    Returns:
        Images of shape `(N, 1, 28, 28)` with values in [0, 1], and their labels, `(N,)`, as
        `int64`. Every call returns tensors of its own.

    Raises:
        ValueError: If there is no such split.
        TypeError: If `dtype` is not a floating point type.

    Example:
        >>> images, labels = load_digits("test")
        >>> images.shape
        torch.Size([1000, 1, 28, 28])
        >>> labels[:5]
        tensor([7, 2, 1, 0, 4])
    """
    if split not in get_args(Split):
        raise ValueError(f'split must be "train" or "test", got {split!r}.')
    if not dtype.is_floating_point:
        raise TypeError(
            f"dtype must be a floating point type such as torch.float32, got {dtype}: "
            "the images are scaled to [0, 1]."
        )
    source = files("spectralclip.demo").joinpath("data", "digits.npz")
    with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays[f"{split}_images"])
        labels = torch.from_numpy(arrays[f"{split}_labels"])
    return images.unsqueeze(1).to(dtype) / 255, labels.to(torch.int64)
