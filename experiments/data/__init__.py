"""The data sets of the study: MNIST and CIFAR-10 from files; digits and synthetic images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from experiments.data import cifar10, mnist, synthetic
from experiments.data._dataset import Dataset, held_out, subset
from experiments.data._files import DataDamaged, DataMissing
from experiments.data.augment import crop_and_flip
from spectralclip.demo import load_digits

__all__ = [
    "NAMES",
    "DataDamaged",
    "DataMissing",
    "Dataset",
    "crop_and_flip",
    "data_folder",
    "fetch",
    "held_out",
    "load",
    "needed",
    "subset",
]

NAMES = ("mnist", "cifar10", "digits", "synthetic")


def data_folder(given: Path | None) -> Path:
    """The folder with data sets: the one given, else that of `SPECTRALCLIP_DATA`, else ./data."""
    return given if given is not None else Path(os.environ.get("SPECTRALCLIP_DATA") or "data")


def needed(config: Mapping[str, Any]) -> set[str]:
    """The data sets that a run's configuration names, or those in a list within it."""
    lists = [value for value in config.values() if isinstance(value, list)]
    within = [needed(one) for found in lists for one in found if isinstance(one, Mapping)]
    return {str(config.get("dataset"))}.intersection(NAMES).union(*within)


def fetch(configs: Iterable[Mapping[str, Any]], folder: Path | None) -> None:
    """See that the data sets of some runs are there.

    What is missing is downloaded, and the folder is made for it.

    Raises:
        DataMissing: One is not there, and could not be had.
    """
    for name in sorted({name for config in configs for name in needed(config)}):
        load(name, folder, download=True)


def load(name: str = "digits", folder: Path | None = None, *, download: bool = False) -> Dataset:
    """Load a data set.

    MNIST and CIFAR-10 are looked for in the folder, CIFAR-10 then in the cache, and their content
    is checked. The digits, a small part of MNIST, come with the library, and the synthetic images
    are made on the spot: these two need no folder.

    Args:
        name: "mnist", "cifar10", "digits" or "synthetic".
        folder: Where data sets are; by default `SPECTRALCLIP_DATA`, else ./data.
        download: Whether to fetch what is not there.

    Raises:
        DataMissing: The files are not there, or, as its subclass `DataDamaged`, not the right
            ones.
        ValueError: There is no data set of that name.
    """
    if name == "mnist":
        return mnist.load(data_folder(folder), download=download)
    if name == "cifar10":
        return cifar10.load(data_folder(folder), download=download)
    if name == "digits":
        return _digits()
    if name == "synthetic":
        return synthetic.load()
    raise ValueError(f"expected a data set among {', '.join(NAMES)}, got {name!r}.")


def _digits() -> Dataset:
    splits = [load_digits("train"), load_digits("test")]
    pixels = [(images * 255).round().to(torch.uint8) for images, _ in splits]
    return Dataset(
        "digits", pixels[0], splits[0][1], pixels[1], splits[1][1], mnist.MEAN, mnist.STD
    )
