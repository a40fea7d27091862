"""CPUs that report AMX and fault on it, as some virtual machines do.

There the first bfloat16 product of a process ends it (an illegal instruction), or fails with
"could not create a primitive", after which every convolution fails, in any precision. OneDNN, which
torch leaves these products to, does without AMX if an environment variable says so when it is used
first. Whether it has to is found out in a process of its own, which may die of it.

This file needs the standard library alone and is also run by its path: importing it from the
package would import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

VARIABLE = "ONEDNN_MAX_CPU_ISA"
REMEDY = {VARIABLE: "AVX512_CORE_FP16"}  # the largest set of instructions without AMX

PATIENCE = 120.0  # seconds; torch alone may take half of it to load from a cold disk
_CPUINFO = Path("/proc/cpuinfo")

# Sizes at which oneDNN takes its AMX kernels. What fails for good fails in float32 too.
_PRODUCTS = """
import torch
from torch.nn.functional import conv2d
rows, images, kernel = torch.ones(256, 256), torch.ones(8, 64, 32, 32), torch.ones(64, 64, 3, 3)
half = torch.bfloat16
assert bool((rows.to(half) @ rows.to(half) == 256).all())
assert bool((conv2d(images.to(half), kernel.to(half)) == 576).all())
assert bool((conv2d(images, kernel) == 576).all())
"""


# --- Found out beforehand ------------------------------------------------------------------


def needed(
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
    cpuinfo: Path = _CPUINFO,
    patience: float = PATIENCE,
) -> dict[str, str]:
    """The environment variables that this machine needs: none, but where AMX faults.

    Costs nothing where no AMX is reported, or the user has decided; else a process that loads
    torch, once for each machine and version of torch: the answer is kept.
    """
    environment = os.environ if environment is None else environment
    if VARIABLE in environment:
        return {}
    machine = _machine(cpuinfo)
    if machine is None:
        return {}
    kept = kept_in("amx.json", environment)
    faults = _recall(kept, machine)
    if faults is None:
        faults = not _works(python, environment, patience)
        if faults and not _works(python, {**environment, **REMEDY}, patience):
            return {}  # for another reason, which torch itself will tell
        keep(kept, json.dumps({"machine": machine, "faults": faults}).encode())
    return dict(REMEDY) if faults else {}


def _machine(cpuinfo: Path) -> dict[str, str] | None:
    """What the answer depends on; None if there is nothing to ask."""
    try:
        text = cpuinfo.read_text()
        torch = metadata.version("torch")
    except (OSError, metadata.PackageNotFoundError):
        return None
    if not re.search(r"^flags\b.*\bamx_", text, re.MULTILINE):
        return None
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return {
        "cpu": model[1] if model else "",
        "kernel": platform.release(),
        "host": platform.node(),
        "torch": torch,
    }


def _works(python: str, environment: Mapping[str, str], patience: float) -> bool:
    """Whether the products come out right in a process of their own."""
    try:
        done = subprocess.run(
            [python, "-c", _PRODUCTS],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=patience,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return False
    return done.returncode == 0


def kept_in(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """The file for what is found out once: in the virtual environment, else in the user's cache."""
    environment = os.environ if environment is None else environment
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix, f".{name}")
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "spectralclip", name)


def keep(path: Path, content: bytes) -> None:
    """Write such a file, if that may be: else the next process finds out again."""
    own = path.with_name(f"{path.name}.{os.getpid()}")  # others may read, or write, meanwhile
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_bytes(content)
        own.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            own.unlink()


def _recall(path: Path, machine: Mapping[str, str]) -> bool | None:
    """The answer, if it was found on this machine with this version of torch."""
    try:
        known: Any = json.loads(path.read_text())
        faults = known["faults"] if known["machine"] == machine else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return faults if isinstance(faults, bool) else None


# --- Met in the user's process -------------------------------------------------------------


class FaultyProcessorError(Exception):
    """OneDNN has failed in this process, and will go on to: no odd layer that is passed over."""


def explained(error: Exception) -> FaultyProcessorError | None:
    """What to say of an error that comes, or tells, of such a fault; None of any other."""
    if isinstance(error, FaultyProcessorError):
        return error
    # "... a primitive descriptor" is about an operation that oneDNN does not have.
    if not re.search(r"could not create a primitive\b(?! descriptor)", str(error)):
        return None
    setting = " ".join(f"{name}={value}" for name, value in REMEDY.items())
    return FaultyProcessorError(
        "oneDNN, by which torch computes on CPUs, could not create a primitive. This is known of "
        "virtual machines that report AMX and fault on it: after the first product in bfloat16, "
        "every convolution of the process fails. It cannot be mended within this process: set the "
        f"environment variable {setting} before torch is imported, and run it again."
    )
