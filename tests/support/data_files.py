"""Data sets in small: files as they are published, and errors that have to be on one line."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import data
from experiments.data import cifar10, mnist

PER_BATCH = 20


REAL = os.environ.get("SPECTRALCLIP_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="SPECTRALCLIP_DATA names no folder with data")


def one_line(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


class Made:
    """A small CIFAR-10, in every form in which it is published or packed anew."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(5)
        self.pixels = numbers.integers(0, 256, (6 * PER_BATCH, 3072), dtype=np.uint8)
        self.labels = numbers.integers(0, 10, 6 * PER_BATCH)
        rows = np.concatenate([self.labels[:, None].astype(np.uint8), self.pixels], axis=1)
        self.records = [rows[i : i + PER_BATCH].tobytes() for i in range(0, len(rows), PER_BATCH)]
        digest = hashlib.sha256(b"".join(self.records)).hexdigest()
        self.release = cifar10.Release(digest, PER_BATCH, urls=(), md5="")

    def batches(self, kind: str) -> dict[str, bytes]:
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        if kind == "binary":
            return {f"{n}.bin": part for n, part in zip(names, self.records, strict=True)}
        cuts = [slice(i * PER_BATCH, (i + 1) * PER_BATCH) for i in range(6)]
        parts = [python_2_batch(self.pixels[cut], self.labels[cut].tolist()) for cut in cuts]
        return dict(zip(names, parts, strict=True))

    def archive(self, path: Path, kind: str = "binary") -> Path:
        inner = "cifar-10-batches-bin" if kind == "binary" else "cifar-10-batches-py"
        with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
            for name, content in {**self.batches(kind), "readme.html": b"<html>"}.items():
                entry = tarfile.TarInfo(f"{inner}/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return path

    def agrees_with(self, found: data.Dataset) -> None:
        images = torch.cat([found.train_images, found.test_images])
        labels = torch.cat([found.train_labels, found.test_labels])
        assert images.numpy().tobytes() == self.pixels.tobytes()
        assert labels.tolist() == self.labels.tolist()
        assert found.train_images.shape == (5 * PER_BATCH, 3, 32, 32)
        assert found.train_images.dtype == torch.uint8
        assert found.test_labels.dtype == torch.int64


def python_2_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 and the NumPy of its time pickled it, which nothing does any more."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t"
        + text(b"b") + b"tR(" + number(1) + b"(" + b"".join(map(number, pixels.shape)) + b"t"
        + b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR("
        + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        + b"I00\nT" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    label = text(b"batch_label") + text(b"testing batch 1 of 1")
    return b"\x80\x02}(" + label + text(b"data") + array + text(b"labels") + listed + b"u."


def idx(values: np.ndarray) -> bytes:
    return (
        struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
    )


def made_mnist() -> tuple[dict[str, np.ndarray], dict[str, mnist.Sums]]:
    numbers = np.random.default_rng(6)
    shapes = [(30, 28, 28), (30,), (10, 28, 28), (10,)]
    arrays = {
        name: numbers.integers(0, 10, shape, dtype=np.uint8)
        for name, shape in zip(mnist.FILES, shapes, strict=True)
    }
    contents = {name: idx(array) for name, array in arrays.items()}
    sums = {
        name: mnist.Sums(
            hashlib.md5(gzip.compress(content, mtime=0)).hexdigest(),
            hashlib.sha256(content).hexdigest(),
        )
        for name, content in contents.items()
    }
    return arrays, sums
