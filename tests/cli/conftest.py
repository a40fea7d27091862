from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cli_cases import NETS, Command, weights


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model and its weights to work in, whose modules are forgotten afterwards."""
    (tmp_path / "nets.py").write_text(NETS)
    torch.save({"state_dict": weights(), "epoch": 3}, tmp_path / "in.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in repr(module):
            del sys.modules[name]


@pytest.fixture
def spectralclip(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
