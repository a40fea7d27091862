"""MNIST from each place and packing."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import REAL, idx, made_mnist, needs_data, one_line

from experiments import data
from experiments.data import mnist


@pytest.mark.parametrize("place", ["MNIST/raw", "mnist", "."])
@pytest.mark.parametrize("end", ["", ".gz", ".xz"])
def test_mnist_from_each_place_and_packing(tmp_path: Path, place: str, end: str) -> None:
    arrays, sums = made_mnist()
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[end]
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        (tmp_path / place / f"{name}{end}").write_bytes(pack(idx(array)))
    found = mnist.load(tmp_path, files=sums)
    parts = [found.train_images, found.train_labels, found.test_images, found.test_labels]
    assert [part.dtype for part in parts] == [torch.uint8, torch.int64] * 2
    assert found.in_shape == (1, 28, 28)
    for part, array in zip(parts, arrays.values(), strict=True):
        np.testing.assert_array_equal(part.reshape(array.shape), array)


def test_other_digits_under_the_same_names_are_refused(tmp_path: Path) -> None:
    arrays, _ = made_mnist()
    for name, array in arrays.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    with pytest.raises(data.DataDamaged) as error:
        data.load("mnist", tmp_path)
    one_line(error, "train-images-idx3-ubyte.gz", mnist.FILES["train-images-idx3-ubyte"].sha256)


def test_a_file_of_mnist_that_is_cut_off(tmp_path: Path) -> None:
    arrays, sums = made_mnist()
    for name, array in arrays.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array))[:-9])
    with pytest.raises(data.DataDamaged) as error:
        mnist.load(tmp_path, files=sums)
    one_line(error, "cannot be read")


@needs_data
def test_the_real_mnist_begins_with_the_digits_of_the_library() -> None:
    found = data.load("mnist", Path(str(REAL)))
    assert len(found.train_images) == 60_000
    assert len(found.test_images) == 10_000
    part, digits = data.subset(found, 4000, 1000), data.load("digits")
    for label in range(10):
        for split in ("train", "test"):
            ours = getattr(part, f"{split}_images")[getattr(part, f"{split}_labels") == label]
            theirs = getattr(digits, f"{split}_images")[getattr(digits, f"{split}_labels") == label]
            assert torch.equal(ours, theirs)
