"""Curves for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from study_training import BATCHES, Killed, begun

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

from experiments.training.board import VARIABLE


def test_curves_need_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "board"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        begun(tmp_path / "run", attacks=None)


def test_curves_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv(VARIABLE, str(tmp_path / "board"))
    with pytest.raises(Killed):
        begun(tmp_path / "run", attacks=None, kill=BATCHES + 2)
    result = begun(tmp_path / "run", attacks=None)["result"]
    seen = EventAccumulator(str(tmp_path / "board" / "run")).Reload()
    assert [event.step for event in seen.Scalars("loss")] == [1, 2, 3]
    norms = [epoch["norms"]["conv"] for epoch in result["epochs"]]
    assert [event.value for event in seen.Scalars("norms/conv")] == pytest.approx(norms)
