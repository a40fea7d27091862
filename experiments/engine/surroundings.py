"""Where a run was done: versions, sources, machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("spectralclip", "torch", "numpy", "scipy")


def surroundings(device: str, threads: int) -> dict[str, Any]:
    """All that may differ between two runs of the same configuration, but for their times."""
    return {
        "versions": _versions(),
        "commit": _commit(),
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
def _commit() -> str | None:
    """Of the sources, marked if they have been changed since."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


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
