"""Which sources a run is done by, where a commit does not tell: without git, or with changes."""

from __future__ import annotations

import functools
import hashlib
import importlib
from pathlib import Path

PACKAGES = ("spectralclip", "experiments")


@functools.cache
def sources_digest() -> str:
    """The SHA-256 of all Python files of the library and of the study, and of their paths.

    Paths begin with the name of the package, so that copies in other places have the same digest.
    It is that of when it is asked for first, as the sources are loaded.

    Returns:
        64 hexadecimal digits.
    """
    return digest_of(*(_folder(name) for name in PACKAGES))


def digest_of(*packages: Path) -> str:
    """The digest of the Python files in some folders."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(package.rglob("*.py"), key=Path.as_posix):
            # Lengths first: no file can pass for the end of one and the beginning of another.
            for part in (path.relative_to(package.parent).as_posix().encode(), path.read_bytes()):
                digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()


def _folder(name: str) -> Path:
    """Where an imported package is."""
    file = importlib.import_module(name).__file__
    if file is None:
        raise RuntimeError(f"{name} has no file: install it, or run from the folder above it.")
    return Path(file).parent
