"""Where a run was done: versions, sources, machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from experiments.engine.sources import digest_of

DIRTY = "-dirty"  # behind a commit: the sources were not quite those
_SOURCES = (":/src", ":/experiments")
_LIBRARY = "spectralclip"
_PACKAGES = (_LIBRARY, "torch", "numpy", "scipy")


def surroundings(device: str, threads: int) -> dict[str, Any]:
    """All that may differ between two runs of the same configuration, but for their times."""
    return {
        "versions": _versions(),
        "commit": commit(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "gpu": _gpu(device),
        },
        "device": device,
        "threads": threads,
    }


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@functools.cache
def commit() -> str | None:
    """The last one of the sources, with "-dirty" behind it if those that run are not quite its.

    They may have been changed since, or the library may be a copy from another place. It is that
    of when it is asked for first, as the sources are loaded; None if unknown. Commits of results
    and pages make no difference.
    """
    found = _git("log", "-1", "--format=%h", "--abbrev=12", "--", *_SOURCES)
    if not found:
        return None
    changed = _git("status", "--porcelain", "--", *_SOURCES)
    is_clean = changed == "" and _is_library_of(Path(__file__).parents[2])
    return found if is_clean else f"{found}{DIRTY}"


def _is_library_of(repository: Path) -> bool:
    """Whether the library that is imported has the sources that a repository has."""
    spec = importlib.util.find_spec(_LIBRARY)
    if spec is None or spec.origin is None:
        return False
    return digest_of(Path(spec.origin).parent) == digest_of(repository / "src" / _LIBRARY)


def _git(*command: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


@functools.cache
def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return str(torch.cuda.get_device_name(device))
