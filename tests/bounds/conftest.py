from __future__ import annotations

import pytest

from spectralclip._bounds import exact as _block_norms


@pytest.fixture
def matrices_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix is iterated upon, instead of being decomposed."""
    monkeypatch.setattr(_block_norms, "EXACT", _block_norms.ExactConstants(cheap=0.0, runs=0.0))
