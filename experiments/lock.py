"""Locks between processes, so that no two of them do the same run.

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
        self._path.unlink(missing_ok=True)  # while nobody else can hold it
        os.close(self._handle)


def take(path: Path) -> Lock | None:
    """The lock of that file, or None if a process that is alive holds it.

    Raises:
        OSError: The folder cannot be written to, or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            os.close(handle)
            raise OSError(error.errno, error.strerror, str(path)) from error
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


def _is_at(path: Path, handle: int) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(handle))
