"""Models, weights and processes for the tests of the command line."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

# Written into the folder that a test works in, and imported from there.
NETS = """
import time
from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width * 36, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, ids, scale):
        return self.fc(self.embedding(ids).mean(1) * scale)


class Slow(nn.Linear):
    def forward(self, x):
        Path("running").touch()
        time.sleep(0.2)
        return super().forward(x)


ready = nn.Sequential(nn.Linear(6, 6))
number = 3


def slow():
    return nn.Sequential(*(Slow(70, 70) for _ in range(20)))


def talkative():
    print("this is not a part of the output")
    return ready


def broken():
    raise ValueError("the width\\nis missing")


def quits():
    raise SystemExit("gone")


def nothing():
    return 7
"""


class Payload:
    """What a malicious file holds: a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def write_malicious(path: Path, trace: Path, protocol: int | None = None) -> None:
    """A checkpoint that runs a command when it is unpickled, in torch's format or as a pickle."""
    content = {"state_dict": {"fc.weight": torch.ones(2), "more": Payload(trace)}}
    if protocol is None:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps({"more": Payload(trace)}, protocol=protocol))


def weights(width: int = 4) -> dict[str, Tensor]:
    """Weights of `Net` whose norms are far above 1."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "conv.weight": normal(width, 3, 3, 3),
        "bn.weight": 0.5 + normal(width).abs(),
        "bn.bias": normal(width),
        "bn.running_mean": normal(width),
        "bn.running_var": 0.5 + normal(width).abs(),
        "bn.num_batches_tracked": torch.tensor(7),
        "fc.weight": normal(5, 36 * width),
        "fc.bias": normal(5),
    }


def dense_norms(state: dict[str, Tensor]) -> dict[str, float]:
    """The norms of the layers of `Net`, from their matrices in float64."""
    state = {name: value.double() for name, value in state.items()}
    eye = torch.eye(3 * 36, dtype=torch.float64).reshape(-1, 3, 6, 6)
    conv = torch.nn.functional.conv2d(eye, state["conv.weight"], padding=1)
    scale = state["bn.weight"] / (state["bn.running_var"] + 1e-5).sqrt()
    matrices = {
        "conv": conv.flatten(1),
        "conv+bn": (conv * scale[:, None, None]).flatten(1),
        "bn": torch.diag(scale),
        "fc": state["fc.weight"],
    }
    return {name: float(torch.linalg.matrix_norm(m, 2)) for name, m in matrices.items()}


def start(*args: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start the command line in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-m", "spectralclip", *map(str, args)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(*args: object, cwd: Path, **options: Any) -> tuple[int, str, str]:
    """The exit code, the output and the errors of the command line in a process of its own."""
    process = start(*args, cwd=cwd, **options)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def files(folder: Path) -> set[str]:
    """The names of all files in a folder, but what Python itself leaves there."""
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


class Command:
    """Runs the command line, and keeps what it said."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.output = self.errors = ""

    def __call__(self, *args: object) -> int:
        from spectralclip import cli  # which needs typer

        code = cli.main(list(map(str, args)))
        self.output, self.errors = self._capture.readouterr()
        return code


NET = ("nets.py:Net", "--input", "3,6,6")


CLIP = ("clip", *NET, "--weights", "in.pt")
