from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from spectralclip._common import TensorFile, packed

safetensors = pytest.importorskip("safetensors.torch")


def test_tensors_are_read_by_key(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.bfloat16)}
    (tmp_path / "in.safetensors").write_bytes(packed(tensors, {"by": "us"}))
    file = TensorFile(tmp_path / "in.safetensors")
    assert set(file) == {"a", "b"} and len(file) == 2
    assert file.metadata == {"by": "us"}
    assert all(torch.equal(file[key], value) for key, value in tensors.items())
    assert file["a"].dtype == torch.bfloat16
    with pytest.raises(KeyError, match="gone"):
        file["gone"]


def test_a_file_without_a_header_stays_without(tmp_path: Path) -> None:
    (tmp_path / "in.safetensors").write_bytes(packed({"a": torch.ones(1)}, None))
    assert TensorFile(tmp_path / "in.safetensors").metadata is None


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        ImportError, match=r"in\.safetensors needs the package 'safetensors'.*\[cli"
    ):
        TensorFile(tmp_path / "in.safetensors")
