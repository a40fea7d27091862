"""What a pickle would import is told, and not run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cli_cases import files, weights, write_malicious

from spectralclip.cli._problems import Problem
from spectralclip.cli._weights_file import read


@pytest.mark.parametrize("protocol", [None, 0, 2, 4])
def test_a_pickle_that_runs_code_is_refused_by_name(tmp_path: Path, protocol: int | None) -> None:
    path, trace = tmp_path / "bad.pt", tmp_path / "trace"
    write_malicious(path, trace, protocol)
    with pytest.raises(Problem, match=r"refused.*run posix\.system;.*safetensors"):
        read(path)
    assert files(tmp_path) == {"bad.pt"}


def test_a_harmless_object_is_refused_by_name_too(tmp_path: Path) -> None:
    from argparse import Namespace

    torch.save({"args": Namespace(lr=1), "model": weights()}, tmp_path / "in.ckpt")
    with pytest.raises(Problem, match=r"refused.*run argparse\.Namespace;"):
        read(tmp_path / "in.ckpt")
