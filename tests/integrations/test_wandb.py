"""Norms in a run of Weights & Biases, offline."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration_parts import RunNotes, Training

from spectralclip.integrations import NormLogger
from spectralclip.integrations.wandb import WandbWriter


def test_rows_have_an_axis_of_their_own() -> None:
    training, notes = Training(max_norm=0.5), RunNotes()
    logger = NormLogger(WandbWriter(notes), training.attachment, every=2)  # type: ignore[arg-type]
    for _ in range(4):
        true = training.step()
        logger.step()
    assert [row["spectral_norm_step"] for row in notes.rows] == [2, 4]
    assert notes.rows[-1]["spectral_norm/0"] == pytest.approx(true["0"], rel=1e-6)
    axis = "spectral_norm_step"
    assert notes.axes["spectral_norm/*"] == notes.axes["spectral_norm_pressure/*"] == axis
    groups = {name.partition("/")[0] for name in notes.rows[-1] if name != axis}
    assert {f"{group}/*" for group in groups} <= set(notes.axes)


def test_an_offline_run_has_the_latest_norms(tmp_path: Path) -> None:
    wandb = pytest.importorskip(
        "wandb", reason="wandb is not installed: it is in the integrations extra"
    )
    training = Training(max_norm={"0": 0.4, "2": 0.6})
    settings = wandb.Settings(silent=True, console="off")
    with wandb.init(mode="offline", dir=tmp_path, project="norms", settings=settings) as run:
        logger = NormLogger(WandbWriter(run), training.attachment, every=2)
        for step in range(4):
            run.log({"loss": float(step)})  # on the run's own axis, between the others
            latest = training.step()
            logger.step()
        summary = dict(run.summary)
    for name, bound in (("0", 0.4), ("2", 0.6)):
        assert summary[f"spectral_norm/{name}"] == pytest.approx(latest[name], rel=1e-6)
        assert summary[f"spectral_norm_bound/{name}"] == bound
        assert summary[f"spectral_norm_pressure/{name}"] >= 0
    assert summary["spectral_norm_step"] == 4 and summary["loss"] == 3.0
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 0
