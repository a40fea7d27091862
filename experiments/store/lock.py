"""Locks between processes, so that no two of them do the same run or disturb what one measures.

A lock is a file that its owner holds by `flock`. The system frees it when the owner ends, however
that happens, so a file that a killed owner has left behind is not held and is taken over. Where
folders are shared between machines, as by NFS, the lock is too.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import final


@final
class Lock:
    """A lock that this process holds, until `release` or its end."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle

    def release(self) -> None:
        """Let others have it."""
        if _flock(self._path, self._handle, fcntl.LOCK_EX):
            self._path.unlink(missing_ok=True)  # while nobody else can hold it
        os.close(self._handle)


def take(path: Path, *, shared: bool = False) -> Lock | None:
    """The lock of that file, or None if a process that is alive holds it.

    Args:
        path: Of the file.
        shared: Whether others that share it may hold it at the same time.

    Raises:
        OSError: The folder cannot be written to, or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            is_ours = _flock(path, handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError:
            os.close(handle)
            raise
        if not is_ours:
            os.close(handle)
            return None
        if _is_at(path, handle):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return Lock(path, handle)
        os.close(handle)  # its owner has removed the file between our two calls


def owner(path: Path) -> str:
    """Who has taken the lock last, in words."""
    try:
        return path.read_text().strip() or "another process"
    except OSError:
        return "another process"


def _flock(path: Path, handle: int, kind: int) -> bool:
    """Hold a file in that way, unless others hold it in a way that excludes it."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return True


def _is_at(path: Path, handle: int) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(handle))
