"""CIFAR-10 from its archives: read as data alone, and refused where it is something else."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import PER_BATCH, REAL, Made, needs_data, one_line

from experiments import data
from experiments.data import _unpickle, cifar10


def test_the_batch_of_python_2_is_one_for_pickle_itself(made: Made) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, that its modules have moved
        read = pickle.loads(made.batches("python")["data_batch_2"], encoding="bytes")
    np.testing.assert_array_equal(read[b"data"], made.pixels[PER_BATCH : 2 * PER_BATCH])
    assert read[b"labels"] == made.labels[PER_BATCH : 2 * PER_BATCH].tolist()


@pytest.mark.parametrize("end", ["gz", "xz"])
@pytest.mark.parametrize("kind", ["binary", "python"])
def test_cifar10_from_each_archive(made: Made, tmp_path: Path, kind: str, end: str) -> None:
    made.archive(tmp_path / f"cifar-10-{kind}.tar.{end}", kind)
    before = sorted(tmp_path.iterdir())
    made.agrees_with(cifar10.load(tmp_path, release=made.release))
    assert sorted(p for p in tmp_path.iterdir() if p.name != "cache") == before


@pytest.mark.parametrize("inner", ["cifar-10-batches-bin", "cifar-10-batches-py", "."])
def test_cifar10_from_an_unpacked_folder(made: Made, tmp_path: Path, inner: str) -> None:
    (tmp_path / inner).mkdir(exist_ok=True)
    for name, content in made.batches("python" if "py" in inner else "binary").items():
        (tmp_path / inner / name).write_bytes(content)
    made.agrees_with(cifar10.load(tmp_path, release=made.release))
    assert not (tmp_path / "cache").exists()  # nothing was slow to unpack


def test_pickles_that_were_written_anew(made: Made, tmp_path: Path) -> None:
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for i, name in enumerate(cifar10.BATCHES):
        part = slice(i * PER_BATCH, (i + 1) * PER_BATCH)
        batch = {"data": made.pixels[part], "labels": made.labels[part].tolist()}
        (place / name).write_bytes(pickle.dumps(batch, protocol=4))
    made.agrees_with(cifar10.load(tmp_path, release=made.release))
    assert [path.name for path in tmp_path.iterdir()] == [place.name]  # nothing was kept


def test_an_archive_is_unpacked_once(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made.archive(tmp_path / "cifar-10-binary.tar.gz")
    opened = []
    real = tarfile.open
    monkeypatch.setattr(tarfile, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    for _ in range(2):
        made.agrees_with(cifar10.load(tmp_path, release=made.release))
    assert opened == [(path, "r|*")]
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")  # what was kept is not believed either
    made.agrees_with(cifar10.load(tmp_path, release=made.release))
    assert len(opened) == 2


@pytest.mark.parametrize("download", [False, True])
def test_what_was_kept_is_used_without_the_archive(
    made: Made, tmp_path: Path, download: bool
) -> None:
    archive = made.archive(tmp_path / "cifar-10-binary.tar.gz")
    cifar10.load(tmp_path, release=made.release)
    archive.unlink()
    for folder in (tmp_path, tmp_path / "not there"):
        # There is no mirror: a download could only fail.
        made.agrees_with(cifar10.load(folder, download=download, release=made.release))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(data.DataMissing):
        cifar10.load(tmp_path, download=download, release=made.release)


def test_without_a_cache_all_goes_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECTRALCLIP_CACHE", str(tmp_path / "file"))
    archive = made.archive(tmp_path / "cifar-10-binary.tar.gz")
    made.agrees_with(cifar10.load(tmp_path, release=made.release))
    assert (tmp_path / "file").read_text() == ""
    assert {path.name for path in tmp_path.iterdir()} == {"file", archive.name}


def test_other_content_is_refused(made: Made, tmp_path: Path) -> None:
    path = made.archive(tmp_path / "cifar-10-binary.tar.gz")
    with pytest.raises(data.DataDamaged) as error:
        cifar10.load(tmp_path, release=replace(made.release, sha256="0" * 64))
    one_line(error, str(path), "0" * 64, made.release.sha256, "remove it")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("end", ["gz", "xz"])
def test_an_archive_that_is_cut_off(made: Made, tmp_path: Path, end: str) -> None:
    path = made.archive(tmp_path / f"cifar-10-binary.tar.{end}")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(data.DataDamaged) as error:
        cifar10.load(tmp_path, release=made.release)
    one_line(error, str(path), "cannot be read")


def test_an_archive_of_something_else(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("../../data_batch_1")  # a path that would lead out of the folder
        archive.addfile(entry, io.BytesIO())
        link = tarfile.TarInfo("data_batch_2")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(data.DataDamaged) as error:
        cifar10.load(tmp_path, release=made.release)
    one_line(error, "data_batch_1", "test_batch", "got data_batch_1;")


class Harm:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("value", [Harm(), [Harm()], print, Path("x"), np.random.default_rng])
def test_pickles_get_nothing_but_arrays(value: object, protocol: int) -> None:
    with pytest.raises(pickle.UnpicklingError, match="expected arrays and plain values"):
        _unpickle.loads(pickle.dumps({"data": value}, protocol))


@pytest.mark.parametrize("content", [b"", b"what", b"\x80\x02", b"\x80\x02cnumpy\nndarray\n)R."])
def test_what_is_no_pickle_of_arrays(content: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        _unpickle.loads(content)


def test_a_harmful_batch_is_reported_in_one_line(made: Made, tmp_path: Path) -> None:
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for name in cifar10.BATCHES:
        (place / name).write_bytes(pickle.dumps(Harm()))
    with pytest.raises(data.DataDamaged) as error:
        cifar10.load(tmp_path, release=made.release)
    one_line(error, str(place), "system")


@pytest.mark.parametrize(
    "batch",
    [
        [],
        {"data": np.zeros((2, 3072), np.uint8)},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [1]},
        {"data": np.zeros((2, 3072)), "labels": [1, 2]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]},
    ],
)
def test_batches_that_are_none(made: Made, tmp_path: Path, batch: object) -> None:
    for name in cifar10.BATCHES:
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(data.DataDamaged, match="is not CIFAR-10"):
        cifar10.load(tmp_path, release=made.release)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_what_is_missing_is_said_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(data.DataMissing) as error:
        data.load(name, tmp_path)
    one_line(error, str(tmp_path), "--data", "SPECTRALCLIP_DATA", "https://", "an empty one")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(data.DataMissing) as error:
        data.load(name, None)
    one_line(error, " is not in data", "./data", "SPECTRALCLIP_DATA")


@pytest.mark.slow  # the archive is unpacked anew
@needs_data
def test_the_real_cifar10_has_the_known_statistics() -> None:
    found = data.load("cifar10", Path(str(REAL)))
    assert found.train_labels.bincount().tolist() == [5000] * 10
    assert found.test_labels.bincount().tolist() == [1000] * 10
    pixels = found.train_images.flatten(2).float() / 255
    torch.testing.assert_close(pixels.mean((0, 2)), torch.tensor(found.mean), atol=1e-4, rtol=0)
    own = pixels.std(2).mean(0)
    torch.testing.assert_close(own, torch.tensor(found.std), atol=2e-4, rtol=0)
