"""Files that appear whole or not at all.

What is written goes into a temporary file in the same folder, is forced to the disk, and only then
takes the name of the file wanted. An error, Ctrl-C or a full disk on the way leaves the folder as
it was: an older file of that name stays, and the temporary one is removed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write to, which takes the place of `path` when the block ends well.

    A symbolic link is followed, and an older file's permissions are kept. If it cannot be written,
    nothing has changed.
    """
    with _temporary_for(path) as (temporary, target):
        with open(temporary, "xb") as file:
            yield file
            _settle(file)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole file in UTF-8, or leave everything as it was."""
    write_texts({path: text})


def write_texts(texts: Mapping[str | os.PathLike[str], str]) -> None:
    """Write several files in UTF-8, all of them, or leave everything as it was."""
    with ExitStack() as stack:
        for path, text in texts.items():
            file = stack.enter_context(replacing(path))
            file.write(text.encode("utf-8"))
            # Whatever can fail has to fail before the first file takes its place.
            _settle(file)


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise the `OSError` that writing to `path` would end in, before the work is done.

    A file is really made in the folder, and removed: permissions do not tell of read-only disks.
    """
    with _temporary_for(path) as (probe, _), open(probe, "xb"):
        pass


@contextmanager
def _temporary_for(path: str | os.PathLike[str]) -> Iterator[tuple[Path, Path]]:
    """The name of a file in the same folder, which is gone afterwards, and the file to replace."""
    target = _target(path)
    # The name is known before the file exists, so that there is no moment at which an interrupt
    # would leave a file that nobody removes. It does not grow with the target's name.
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        yield temporary, target
    except OSError as error:
        if error.filename in (None, str(temporary)):
            # The reader knows the file asked for, not the temporary one.
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _target(path: str | os.PathLike[str]) -> Path:
    """The file that is to be replaced, if it is one that may be."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # all that could be followed have been: it leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        # To put a file in the place of /dev/null would harm everybody else.
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return target
