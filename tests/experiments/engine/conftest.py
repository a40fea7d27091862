"""A study of its own for each test of engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_cases import Study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("FAKE_STUDY_TRACE", str(tmp_path / "trace"))
    return Study(tmp_path)
