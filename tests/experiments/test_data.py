from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import chisquare

from experiments import data
from experiments.data import _files, _unpickle, cifar10, mnist, synthetic
from spectralclip.demo import load_digits

PER_BATCH = 20


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's data, or leaves something in the user's cache."""
    monkeypatch.setenv("SPECTRALCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECTRALCLIP_DATA", raising=False)


REAL = os.environ.get("SPECTRALCLIP_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="SPECTRALCLIP_DATA names no folder with data")


def one_line(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# CIFAR-10 --------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


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


# MNIST -----------------------------------------------------------------------------------------


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


# Downloads -------------------------------------------------------------------------------------


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
    configs = [{"dataset": "mnist"}, {"k": 1}, {"training": {"dataset": "cifar10"}}]
    data.fetch([*configs, *configs, {"dataset": "of one's own"}], tmp_path / "new")
    assert calls == [("cifar10", tmp_path / "new", True), ("mnist", tmp_path / "new", True)]


# Data sets without files -----------------------------------------------------------------------


def test_the_digits_are_those_of_the_library_and_the_default() -> None:
    found = data.load()
    images, labels = load_digits("test")
    assert found.name == "digits"
    assert found.test_images.dtype == torch.uint8
    assert torch.equal(found.test_images.float() / 255, images)
    assert torch.equal(found.test_labels, labels)
    assert found.in_shape == (1, 28, 28)


def test_synthetic_images_can_be_learned_and_repeat() -> None:
    state = torch.random.get_rng_state()
    found, again = data.load("synthetic"), data.load("synthetic")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(found.train_images, again.train_images)
    assert not torch.equal(found.train_images, synthetic.load(seed=1).train_images)
    assert found.in_shape == (3, 32, 32)
    assert found.train_labels.bincount().tolist() == [400] * 10

    def flat(images: torch.Tensor) -> torch.Tensor:
        coarse = torch.nn.functional.avg_pool2d(images.double() / 255 - 0.5, 4)
        return coarse.flatten(1)

    train, test = flat(found.train_images), flat(found.test_images)
    gram = train.T @ train + 10 * torch.eye(192, dtype=torch.float64)
    wanted = torch.nn.functional.one_hot(found.train_labels).double() - 0.1
    weights = torch.linalg.solve(gram, train.T @ wanted)
    accuracy = ((test @ weights).argmax(1) == found.test_labels).double().mean()
    assert accuracy > 0.95
    # An attack has something to do: noise is as large as the patterns.
    assert 0.15 < float(found.train_images.double().std() / 255) < 0.3


def test_names_that_are_none() -> None:
    with pytest.raises(ValueError, match="mnist, cifar10, digits, synthetic, got 'imagenet'"):
        data.load("imagenet")


def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.data_folder(None) == Path("data")
    monkeypatch.setenv("SPECTRALCLIP_DATA", str(tmp_path))
    assert data.data_folder(None) == tmp_path
    assert data.data_folder(Path("given")) == Path("given")
    with pytest.raises(data.DataMissing, match=str(tmp_path)):
        data.load("cifar10")


# Parts of data sets ----------------------------------------------------------------------------


def numbered(labels: torch.Tensor) -> data.Dataset:
    """A data set whose images tell their place in it."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None]
    return data.Dataset("numbered", images, labels, images, labels, (0.0,), (1.0,))


def test_a_subset_takes_the_first_of_each_class(generator: torch.Generator) -> None:
    labels = torch.randint(10, (250,), generator=generator)
    whole = numbered(labels)
    part = data.subset(whole, 50, 20)
    for images, chosen, each in (
        (part.train_images, part.train_labels, 5),
        (part.test_images, part.test_labels, 2),
    ):
        for label in range(10):
            first = (labels == label).nonzero().flatten()[:each]
            assert images.flatten()[chosen == label].tolist() == first.tolist()
    # Every beginning is balanced as well.
    assert part.train_labels[:30].bincount().tolist() == [3] * 10


def test_a_subset_by_seed(generator: torch.Generator) -> None:
    whole = numbered(torch.randint(10, (250,), generator=generator))
    state = torch.random.get_rng_state()
    one, same, other = (data.subset(whole, 50, 20, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.train_images, same.train_images)
    assert not torch.equal(one.train_images, other.train_images)
    for part in (one, other):
        assert part.train_labels.bincount().tolist() == [5] * 10
        assert len(part.train_images.unique()) == 50
        assert torch.equal(
            whole.train_labels[part.train_images.flatten().long()], part.train_labels
        )


def test_a_subset_of_classes_with_few_images() -> None:
    whole = numbered(torch.tensor([0] * 20 + [1] * 3))
    assert data.subset(whole, 5, 10).train_labels.bincount().tolist() == [3, 2]
    assert data.subset(whole, 5, 10).test_labels.bincount().tolist() == [7, 3]
    assert data.subset(whole, None, None).train_images is not None
    assert torch.equal(data.subset(whole, None, 23).train_images, whole.train_images)
    for count in (0, 24):
        with pytest.raises(ValueError, match=f"from 1 to 23 training images.*got {count}"):
            data.subset(whole, count, None)


# Augmentation ----------------------------------------------------------------------------------


def test_crops_are_those_of_pillow_and_all_are_drawn(generator: torch.Generator) -> None:
    image = torch.randint(1, 256, (3, 12, 10), generator=generator, dtype=torch.uint8)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    known = {}
    for flipped in (False, True):
        padded = ImageOps.expand(picture, border=2, fill=0)
        for top in range(5):
            for left in range(5):
                crop = padded.crop((left, top, left + 10, top + 12))
                crop = ImageOps.mirror(crop) if flipped else crop
                known[np.asarray(crop).tobytes()] = 0
    batch = image.repeat(10_000, 1, 1, 1)
    out = data.crop_and_flip(batch, generator, padding=2)
    assert out.shape == batch.shape
    assert out.dtype == torch.uint8
    for pixels in out.permute(0, 2, 3, 1).contiguous().numpy():
        known[pixels.tobytes()] += 1  # a KeyError is a crop that there is not
    assert chisquare(list(known.values())).pvalue > 1e-4


def test_augmentation_repeats_and_leaves_its_input(generator: torch.Generator) -> None:
    images = torch.rand(16, 3, 32, 32, generator=generator)
    before, state = images.clone(), torch.random.get_rng_state()
    first = data.crop_and_flip(images, torch.Generator().manual_seed(3))
    again = data.crop_and_flip(images, torch.Generator().manual_seed(3))
    other = data.crop_and_flip(images, torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    same = data.crop_and_flip((images * 255).to(torch.uint8), torch.Generator().manual_seed(3))
    assert torch.equal((first * 255).to(torch.uint8), same)


# The real ones ---------------------------------------------------------------------------------


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
