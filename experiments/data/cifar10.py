"""CIFAR-10 from its archives, binary or Python's, however they are packed, or unpacked.

Whatever it is read from becomes *records* first, those of the binary version: a byte for the class
and 3,072 for the pixels, the five training batches before the test batch. So one checksum, that of
all records, holds for every form.
"""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments.data import _files, _unpickle
from experiments.data._dataset import Dataset
from experiments.data._files import DataDamaged, DataMissing

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
REMEDY = f"get it again from {PAGE}"

# The usual numbers, and the paper's. The second are means over images of each one's own deviation.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)

PIXELS = 3 * 32 * 32
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
KINDS = ("binary", "python")
ARCHIVES = tuple(f"cifar-10-{kind}.tar.{end}" for kind in KINDS for end in ("gz", "xz"))
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", ".")


@dataclass(frozen=True)
class Release:
    """What is expected of the data.

    Attributes:
        sha256: Of all records.
        per_batch: Images in each of the six batches.
        urls: Of the binary archive.
        md5: Of the binary archive, as published.
    """

    sha256: str
    per_batch: int
    urls: tuple[str, ...]
    md5: str


OFFICIAL = Release(
    sha256="013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522",
    per_batch=10_000,
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)


def load(folder: Path, *, download: bool = False, release: Release = OFFICIAL) -> Dataset:
    """Load CIFAR-10 from a folder.

    Archives take a while to unpack, so that their records are kept in `_files.cache_folder()`; from
    there they are read, and checked, even where the folder has no archive any more.

    Args:
        folder: Where to look for an archive, binary or Python's, packed by gzip or xz, or for its
            unpacked folder.
        download: Whether to fetch the binary archive if there is none, and nothing was kept.
        release: What the content has to be.
    """
    return _dataset(_records(folder, download, release), release)


def _records(folder: Path, download: bool, release: Release) -> bytes:
    """The records, which are those published: unpacked, else from the cache, else an archive."""
    path = _find(folder)
    if path is not None and path.is_dir():
        return _checked(_from_folder(path), path, release)
    name = f"cifar10-{release.sha256[:16]}.bin"
    kept = _files.from_cache(name, release.sha256)
    if kept is None:
        archive = path or _fetched(folder, download, release)
        kept = _checked(_from_archive(archive, release), archive, release)
        _files.to_cache(name, kept)
    return kept


def _fetched(folder: Path, download: bool, release: Release) -> Path:
    """The archive, downloaded if that is allowed."""
    if not download:
        raise DataMissing(
            f"CIFAR-10 is not in {folder}: expected {' or '.join(ARCHIVES)} (from {PAGE}), or one "
            f"unpacked, {_files.PLACE}."
        )
    path = folder / ARCHIVES[0]
    _files.download(release.urls, path, release.md5)
    return path


def _find(folder: Path) -> Path | None:
    unpacked = (folder / name for name in FOLDERS)
    whole = (place for place in unpacked if any(_names_in(place, end) for end in (".bin", "")))
    packed = (folder / name for name in ARCHIVES if (folder / name).is_file())
    return next(whole, None) or next(packed, None)


def _names_in(place: Path, end: str) -> bool:
    return all((place / f"{name}{end}").is_file() for name in BATCHES)


def _checked(batches: Mapping[str, bytes], path: Path, release: Release) -> bytes:
    for end, read in ((".bin", bytes), ("", _from_pickle)):
        if all(f"{name}{end}" in batches for name in BATCHES):
            try:
                records = b"".join(read(batches[f"{name}{end}"]) for name in BATCHES)
            except pickle.UnpicklingError as error:
                raise DataDamaged(f"{path} is not CIFAR-10 ({error}): {REMEDY}.") from error
            return _files.checked(records, release.sha256, path, REMEDY)
    raise DataDamaged(
        f"{path} is not CIFAR-10: expected {BATCHES[0]} to {BATCHES[-1]}, with or without .bin, "
        f"got {', '.join(sorted(batches)) or 'none of them'}; remove it and {REMEDY}."
    )


def _from_folder(place: Path) -> dict[str, bytes]:
    end = ".bin" if _names_in(place, ".bin") else ""
    return {f"{n}{end}": _files.unpacked(place / f"{n}{end}", REMEDY) for n in BATCHES}


def _from_archive(path: Path, release: Release) -> dict[str, bytes]:
    """The batches in an archive, in memory: nothing of it is written anywhere."""
    wanted = {f"{name}{end}" for name in BATCHES for end in (".bin", "")}
    # Pickles also hold the names of the images. Anything far larger is no batch.
    limit = 2 * release.per_batch * (PIXELS + 1) + 100_000
    batches = {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = Path(member.name).name
                if name in wanted and member.isfile() and member.size <= limit:
                    file = archive.extractfile(member)
                    batches[name] = b"" if file is None else file.read()
    except (tarfile.TarError, *_files.UNREADABLE) as error:
        raise DataDamaged(f"{path} cannot be read ({error}): remove it and {REMEDY}.") from error
    return batches


def _from_pickle(data: bytes) -> bytes:
    """The records of a batch of the Python version."""
    batch = _unpickle.loads(data)
    values = {} if not isinstance(batch, dict) else {_text(k): v for k, v in batch.items()}
    pixels, labels = values.get("data"), values.get("labels")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise pickle.UnpicklingError("expected an array data and a list labels in a batch")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
        raise pickle.UnpicklingError(
            f"expected {len(labels)} rows of {PIXELS} bytes, got {pixels.dtype} {pixels.shape}"
        )
    if not all(isinstance(label, int) and 0 <= label < 10 for label in labels):
        raise pickle.UnpicklingError("expected labels from 0 to 9")
    first = np.array(labels, np.uint8).reshape(-1, 1)
    return np.concatenate([first, pixels], axis=1).tobytes()


def _text(key: object) -> object:
    return key.decode("latin-1") if isinstance(key, bytes) else key


def _dataset(records: bytes, release: Release) -> Dataset:
    rows = np.frombuffer(records, np.uint8).reshape(-1, PIXELS + 1)
    pixels = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)
    images, labels = torch.from_numpy(pixels), torch.from_numpy(rows[:, 0].astype(np.int64))
    cut = 5 * release.per_batch
    return Dataset(
        "cifar10", images[:cut], labels[:cut], images[cut:], labels[cut:], mean=MEAN, std=STD
    )
