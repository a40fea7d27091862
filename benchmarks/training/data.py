"""Real images for training: MNIST and CIFAR-10 from a folder, or the digits in the package."""

from __future__ import annotations

import gzip
import os
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.runs import ROOT
from spectralclip.demo.digits import load_digits

MNIST_FOLDER = Path("MNIST") / "raw"  # as torchvision lays it out
CIFAR_ARCHIVE = "cifar-10-binary.tar.xz"
CIFAR_RECORD = 1 + 3 * 32 * 32  # a label and the three planes of an image


def default_folder() -> Path:
    """Where the data sets are looked for, unless the command line says otherwise."""
    return Path(os.environ.get("SPECTRALCLIP_DATA", ROOT.parent / "shared" / "data"))


@dataclass(frozen=True)
class Images:
    """Standardized images with their labels."""

    source: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A random part of the training images."""
        images, labels = self.train
        chosen = torch.randint(len(labels), (size,), generator=generator)
        return images[chosen], labels[chosen]


@lru_cache
def digits(folder: Path, tests: int = 4000) -> Images:
    """MNIST from the folder; without it, the 5,000 digits of the package."""
    raw = folder / MNIST_FOLDER
    if not (raw / "train-images-idx3-ubyte.gz").exists():
        train, test, source = load_digits("train"), load_digits("test"), "embedded digits"
    else:
        train, test = _mnist(raw, "train"), _mnist(raw, "t10k")
        source = "MNIST"
    return _standardized(source, train, (test[0][:tests], test[1][:tests]))


@lru_cache
def objects(folder: Path, tests: int = 2000) -> Images | None:
    """Images of CIFAR-10, from the first file of its archive; None where there is none.

    The archive has to be unpacked from its beginning, which takes seconds for each file: the
    images to test with are the last ones of the same file.
    """
    archive = folder / CIFAR_ARCHIVE
    if not archive.exists():
        return None
    with tarfile.open(archive, "r|xz") as tar:
        for member in tar:
            content = tar.extractfile(member) if "data_batch" in member.name else None
            if content is not None:
                images, labels = _cifar(content.read())
                train, test = slice(None, -tests), slice(-tests, None)
                return _standardized(
                    "CIFAR-10", (images[train], labels[train]), (images[test], labels[test])
                )
    raise ValueError(f"{archive} holds no data_batch file: download the binary version again.")


def small_objects(folder: Path) -> Images | None:
    """The middle 16x16 pixels of these images."""
    whole = objects(folder)
    if whole is None:
        return None
    train, test = (
        (images[..., 8:24, 8:24].contiguous(), labels)
        for images, labels in (whole.train, whole.test)
    )
    return Images(whole.source, train, test)


def _mnist(raw: Path, split: str) -> tuple[Tensor, Tensor]:
    images = _idx(raw / f"{split}-images-idx3-ubyte.gz")
    labels = _idx(raw / f"{split}-labels-idx1-ubyte.gz")
    return images[:, None].float() / 255, labels.long()


def _idx(path: Path) -> Tensor:
    """An array of bytes: after the magic number, whose last byte is the rank, come the sizes."""
    content = gzip.decompress(path.read_bytes())
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an array of bytes in IDX format: download it again.")
    rank = content[3]
    sizes = np.frombuffer(content, ">i4", rank, 4).tolist()
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * rank).copy()).reshape(
        sizes
    )


def _cifar(content: bytes) -> tuple[Tensor, Tensor]:
    records = torch.from_numpy(np.frombuffer(content, np.uint8).copy()).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).float() / 255, records[:, 0].long()


def _standardized(source: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Images:
    """Zero mean and unit variance in each channel of the training images."""
    mean = train[0].mean((0, 2, 3), keepdim=True)
    deviation = train[0].std((0, 2, 3), keepdim=True)
    return Images(
        source,
        ((train[0] - mean) / deviation, train[1]),
        ((test[0] - mean) / deviation, test[1]),
    )
