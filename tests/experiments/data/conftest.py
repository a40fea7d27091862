"""What every test of data sets has: folders of its own, and a small CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import Made


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's data, or leaves something in the user's cache."""
    monkeypatch.setenv("SPECTRALCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECTRALCLIP_DATA", raising=False)


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()
