"""MNIST from its four files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data import _files
from experiments.data._dataset import Dataset
from experiments.data._files import DataDamaged, DataMissing

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
REMEDY = f"get it again from {MIRRORS[0]}"

# The paper's pixels go from 0 to 1 as they are; its attacks and bounds are about these.
MEAN = (0.0,)
STD = (1.0,)


class Sums(NamedTuple):
    """Checksums of a file.

    Attributes:
        md5: Of the file as published, packed by gzip.
        sha256: Of its content.
    """

    md5: str
    sha256: str


FILES = {
    "train-images-idx3-ubyte": Sums(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": Sums(
        "d53e105ee54ea40749a09fcbcd1e9432",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": Sums(
        "9fb629c4189551a2d022fa330f9573f3",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": Sums(
        "ec29112dd5afa0611ce80d1b7f02629c",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def load(folder: Path, *, download: bool = False, files: Mapping[str, Sums] = FILES) -> Dataset:
    """Load MNIST from a folder, its subfolder `MNIST/raw` or its subfolder `mnist`.

    Args:
        folder: Where to look for the four files, plain or packed by gzip or xz.
        download: Whether to fetch those that are not there, into `MNIST/raw`.
        files: The names and checksums of the images and labels for training, then for tests.
    """
    paths = {name: _find(folder, name) for name in files}
    missing = [name for name, path in paths.items() if path is None]
    if missing and download:
        paths |= {name: _download(folder, name, files[name].md5) for name in missing}
        missing = []
    if missing:
        raise DataMissing(
            f"MNIST is not in {folder} or its MNIST/raw: expected {', '.join(missing)} (plain, .gz "
            f"or .xz; from {MIRRORS[0]}) {_files.PLACE}."
        )
    arrays = [_array(path, files[name].sha256) for name, path in paths.items() if path is not None]
    train, train_labels, test, test_labels = arrays
    return Dataset(
        "mnist",
        train.unsqueeze(1),
        train_labels.long(),
        test.unsqueeze(1),
        test_labels.long(),
        MEAN,
        STD,
    )


def _find(folder: Path, name: str) -> Path | None:
    places = (folder / "MNIST" / "raw", folder / "mnist", folder)
    candidates = (place / f"{name}{end}" for place in places for end in ("", ".gz", ".xz"))
    return next((path for path in candidates if path.is_file()), None)


def _download(folder: Path, name: str, md5: str) -> Path:
    target = folder / "MNIST" / "raw" / f"{name}.gz"
    _files.download([f"{mirror}{name}.gz" for mirror in MIRRORS], target, md5)
    return target


def _array(path: Path, sha256: str) -> Tensor:
    """The array of an idx file: two zeros, the type, the rank, the sizes, and then the bytes."""
    content = _files.checked(_files.unpacked(path, REMEDY), sha256, path, REMEDY)
    zeros, kind, rank = content[:2], content[2], content[3]
    sizes = np.frombuffer(content, ">u4", rank, 4)
    if zeros != b"\0\0" or kind != 8 or len(content) != 4 + 4 * rank + np.prod(sizes):
        raise DataDamaged(f"{path} is no idx file of bytes: remove it and {REMEDY}.")
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    return torch.from_numpy(values.reshape(sizes).copy())
