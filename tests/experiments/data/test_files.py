"""Files of data sets: downloaded whole or not at all, and found again."""

from __future__ import annotations

import gzip
import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data_files import Made, idx, made_mnist, one_line

from experiments import data
from experiments.data import _files, cifar10, mnist


def test_a_download_comes_from_the_first_mirror_that_has_it(tmp_path: Path) -> None:
    content = b"content" * 1000
    (tmp_path / "right").write_bytes(content)
    (tmp_path / "wrong").write_bytes(b"other")
    urls = [(tmp_path / name).as_uri() for name in ("none", "wrong", "right")]
    target = tmp_path / "new" / "folder" / "file"
    _files.download(urls, target, hashlib.md5(content).hexdigest())
    assert target.read_bytes() == content


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_bytes(b"other")
    urls = [(tmp_path / name).as_uri() for name in ("none", "wrong")]
    target = tmp_path / "new" / "file"
    md5 = hashlib.md5(b"content").hexdigest()
    with pytest.raises(data.DataMissing) as error:
        _files.download(urls, target, md5)
    one_line(error, *urls, md5, hashlib.md5(b"other").hexdigest(), str(target.parent))
    assert list(target.parent.iterdir()) == []


class Breaks(io.BytesIO):
    """A response that ends in the middle, as connections do."""

    headers: dict[str, str] = {}  # noqa: RUF012

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise TimeoutError("timed out")
        return super().read(3)


def test_a_connection_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Breaks(b"content"))
    with pytest.raises(data.DataMissing) as error:
        _files.download(["https://mirror/file"], tmp_path / "file", "")
    one_line(error, "https://mirror/file", "timed out")
    assert list(tmp_path.iterdir()) == []


def test_data_sets_are_downloaded_where_they_are_found_again(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, folder = tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    arrays, sums = made_mnist()
    for name, array in arrays.items():
        (mirror / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
    monkeypatch.setattr(mnist, "MIRRORS", (mirror.as_uri() + "/",))
    archive = made.archive(mirror / "cifar-10-binary.tar.gz")
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    release = replace(made.release, urls=(archive.as_uri(),), md5=md5)

    first = mnist.load(folder, download=True, files=sums)
    made.agrees_with(cifar10.load(folder, download=True, release=release))
    for file in mirror.iterdir():
        file.unlink()
    again = mnist.load(folder, download=True, files=sums)
    assert torch.equal(first.train_images, again.train_images)
    made.agrees_with(cifar10.load(folder, download=True, release=release))


def test_what_is_needed_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Path | None, bool]] = []

    def load(name: str, folder: Path | None, *, download: bool) -> None:
        calls.append((name, folder, download))

    monkeypatch.setattr(data, "load", load)
    configs = [{"dataset": "mnist"}, {"k": 1}, {"trainings": [{"dataset": "cifar10"}]}]
    data.fetch([*configs, *configs, {"dataset": "of one's own"}], tmp_path / "new")
    assert calls == [("cifar10", tmp_path / "new", True), ("mnist", tmp_path / "new", True)]
