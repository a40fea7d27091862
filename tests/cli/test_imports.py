"""What the command line does not import, since importing it would take longer than the work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

# Compilers, symbolic mathematics, plots and pages, and the packages that models come from.
HEAVY = {
    "accelerate",
    "altair",
    "jinja2",
    "lightning",
    "matplotlib",
    "mpmath",
    "numpy.polynomial",
    "pandas",
    "PIL",
    "rich",
    "safetensors",
    "scipy",
    "sympy",
    "tensorboard",
    "timm",
    "torch._dynamo",
    "torch._inductor",
    "transformers",
    "vl_convert",
    "wandb",
}

# What torch and typer import by themselves is no matter of ours.
COMMAND = """
import json, sys
import torch, typer
before = set(sys.modules)
from spectralclip.__main__ import main
code = main()
with open("modules.json", "w") as file:
    json.dump(sorted(set(sys.modules) - before), file)
sys.exit(code)
"""
NETWORK = """
from torch import nn
def network():
    norm = nn.BatchNorm2d(4)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
"""
AUDIT = ("audit", "nets.py:network", "--input", "3,8,8", "--json", "audit.json")


@pytest.mark.parametrize("args", [("--help",), ("--version",), AUDIT], ids=lambda args: args[0])
def test_heavy_packages_are_left_alone(tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "nets.py").write_text(NETWORK)
    command = [sys.executable, "-c", COMMAND, *args]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert "spectralclip.cli" in modules
    assert [name for name in modules if any(f"{name}.".startswith(f"{x}.") for x in HEAVY)] == []
