"""Files of data sets: their checksums, their downloads, and a cache of what is slow to unpack."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import lzma
import os
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from spectralclip._common import Problem, replacing

TIMEOUT = 30.0  # seconds without a byte until a mirror is given up
_CHUNK = 1 << 20

# What reading a packed file that is cut off, or none at all, ends in.
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)


# The end of what is said where something is missing.
PLACE = (
    "in the folder given by --data or SPECTRALCLIP_DATA, by default ./data; an empty one is enough "
    "where `python -m experiments run` may download"
)


class DataMissing(Problem):
    """A data set is not there; the message says where to put what."""


class DataDamaged(DataMissing):
    """A data set is there, but is not the one that was published."""


class _DownloadFailed(Exception):
    """A mirror did not give what it should; never seen outside of this module."""


def checked(content: bytes, digest: str, path: Path, remedy: str) -> bytes:
    """The content, if its SHA-256 is the one wanted.

    It is that of the content, not of the file, so that any packing will do.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise DataDamaged(
            f"{path} is damaged or something else: expected content with the SHA-256 {digest}, "
            f"got {found}; remove it and {remedy}."
        )
    return content


def unpacked(path: Path, remedy: str) -> bytes:
    """The content of a file that may be packed by gzip or xz, as its name says."""
    unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    try:
        return unpack(path.read_bytes())
    except UNREADABLE as error:
        raise DataDamaged(f"{path} cannot be read ({error}): remove it and {remedy}.") from error


def download(urls: Sequence[str], target: Path, md5: str) -> None:
    """Fetch a file from the first mirror that has it, or leave nothing behind.

    Args:
        urls: Of the file, at each mirror.
        target: Where to put it.
        md5: The checksum that the publisher states.

    Raises:
        DataMissing: No mirror gave the right file, or it cannot be written.
    """
    failures = []
    for url in urls:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _fetch(url, target, md5)
            return
        except (OSError, http.client.HTTPException, _DownloadFailed) as error:
            failures.append(f"{url}: {error}")
    raise DataMissing(
        f"{target.name} could not be downloaded ({'; '.join(failures)}): get it by hand and put it "
        f"into {target.parent}."
    )


def _fetch(url: str, target: Path, md5: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        total = response.headers.get("Content-Length")
        size = int(total) if total else None
        with replacing(target) as file, _progress(target.name, size) as advance:
            for chunk in _chunks(response):
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
            if digest.hexdigest() != md5:
                raise _DownloadFailed(f"expected the MD5 {md5}, got {digest.hexdigest()}")


def _chunks(response: IO[bytes]) -> Iterator[bytes]:
    """The parts of a response; errors of the network are kept apart from those of the disk."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _DownloadFailed(f"the connection broke ({error})") from error
        if not chunk:
            return
        yield chunk


@contextmanager
def _progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, where rich is installed; called with the number of new bytes."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn
    except ImportError:
        yield lambda size: None
        return
    columns = ("[progress.description]{task.description}", BarColumn())
    numbers = (DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, *numbers, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda size: bar.advance(task, size)


def cache_folder() -> Path:
    """Where unpacked data are kept: `SPECTRALCLIP_CACHE`, else in the user's folder of caches."""
    given = os.environ.get("SPECTRALCLIP_CACHE")
    if given:
        return Path(given)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "spectralclip"


def from_cache(name: str, digest: str) -> bytes | None:
    """What was kept under that name, if it is there and whole."""
    try:
        content = (cache_folder() / name).read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: the user has no folder
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def to_cache(name: str, content: bytes) -> None:
    """Keep something for the next time, if it can be kept: nothing depends on it."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name) as file:
            file.write(content)
    except (OSError, RuntimeError):
        return
