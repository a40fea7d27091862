"""Files that a command reads: only regular ones, and only up to a size that memory may hold.

A device or a pipe has no end: a link to one that gives zeros would fill the memory.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

from spectralclip.cli._problems import Problem, file_problems

GIB = 2**30
FLAG = "--max-file-size"

# What is read whole into memory. 16 GiB hold eight billion weights in half precision; the audit of
# 150 dense layers is 0.16 MB of JSON, and takes 1.9 times as much once it is parsed.
LARGEST_WEIGHTS = 16.0 * GIB
LARGEST_TEXT = 1.0 * GIB

# By the letter that `ls -l` shows.
_KINDS = {
    "d": "a directory",
    "c": "a character device",
    "b": "a block device",
    "p": "a pipe",
    "s": "a socket",
}


def in_bytes(gib: float | None) -> float | None:
    """What `--max-file-size` says, in bytes."""
    if gib is not None and not gib > 0:
        raise Problem(f"{FLAG}: expected a positive number of GiB, or inf for no limit, got {gib}.")
    return None if gib is None else gib * GIB


def require_regular(path: Path, what: str, limit: float, *, empty: bool = False) -> None:
    """Refuse what is not a regular file within the limit, without opening it."""
    with file_problems("read"):
        found = os.stat(path)
    _check(found, path, what, limit, empty)


def open_regular(path: Path, what: str, limit: float) -> BinaryIO:
    """Open a regular file within the limit.

    The file that was opened is looked at once more: a path may mean something else by then.
    """
    require_regular(path, what, limit)
    # Without waiting for somebody to write, should it have become a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with file_problems("read"):
        file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check(os.fstat(file.fileno()), path, what, limit, empty=False)
    except Problem:
        file.close()
        raise
    return file


def read_text(path: Path, what: str, limit: float) -> str:
    with open_regular(path, what, limit) as file:
        size = os.fstat(file.fileno()).st_size
        with file_problems("read"):
            data = file.read(size + 1)
    if len(data) > size:
        raise Problem(f"{what} {path}: the file grows while it is read: wait until it is complete.")
    return data.decode("utf-8")


def require_unpacked_size(file: BinaryIO, path: Path, what: str, limit: float) -> None:
    """Refuse an archive whose members are larger than the limit once they are unpacked."""
    try:
        if not zipfile.is_zipfile(file):
            return
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # whoever reads it will say what is wrong with it
    finally:
        file.seek(0)
    if size > limit:
        raise _too_large(f"{what} {path}: unpacked, it has", size, limit)


def _check(found: os.stat_result, path: Path, what: str, limit: float, empty: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        got = _KINDS.get(stat.filemode(found.st_mode)[0], "something else")
        link = f" (a link to {os.path.realpath(path)})" if path.is_symlink() else ""
        raise Problem(f"{what} {path}: expected a regular file, got {got}{link}.")
    if found.st_size == 0 and not empty:
        raise Problem(
            f"{what} {path}: the file is empty (0 bytes): it is truncated, damaged or something "
            "else, such as a file of /proc, which does not tell its size."
        )
    if found.st_size > limit:
        raise _too_large(f"{what} {path}: it has", found.st_size, limit)


def _too_large(has: str, size: int, limit: float) -> Problem:
    enough = math.ceil(size / GIB)
    return Problem(
        f"{has} {_shown(size)}, and at most {_shown(limit)} are read: if it is what you mean, and "
        f"there is memory for it, add {FLAG} {enough}."
    )


def _shown(size: float) -> str:
    return f"{size / GIB:.3g} GiB" if size >= GIB / 100 else f"{size:,.0f} bytes"
