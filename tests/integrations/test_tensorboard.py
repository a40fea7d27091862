"""Norms in TensorBoard, written by torch's own writer and read back by TensorBoard's reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration_parts import BoardNotes, Training

from spectralclip.integrations import NormLogger
from spectralclip.integrations.tensorboard import TensorBoardWriter


def test_curves_and_histograms_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: it is in the integrations extra"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    bounds = {"0": 0.4, "2": 0.6}
    training = Training(max_norm=bounds, schedule=lambda step: 1.0 if step < 4 else 0.5)
    true = []
    with SummaryWriter(tmp_path) as writer:
        logger = NormLogger(TensorBoardWriter(writer), training.attachment, every=2)
        for _ in range(6):
            true.append(training.step())
            logger.step()

    read = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    for name, bound in bounds.items():
        curve = read.Scalars(f"spectral_norm/{name}")
        assert [event.step for event in curve] == [2, 4, 6]
        expected = [norms[name] for norms in true[1::2]]
        assert [event.value for event in curve] == pytest.approx(expected, rel=1e-6)
        of_bound = [event.value for event in read.Scalars(f"spectral_norm_bound/{name}")]
        assert of_bound == pytest.approx([bound, 0.5 * bound, 0.5 * bound])
    histograms = read.Histograms("spectral_norms")
    assert [event.step for event in histograms] == [2, 4, 6]
    for event, norms in zip(histograms, true[1::2], strict=True):
        assert event.histogram_value.num == 2
        assert event.histogram_value.sum == pytest.approx(sum(norms.values()), rel=1e-6)
        assert event.histogram_value.max == pytest.approx(max(norms.values()), rel=1e-6)
    share = read.Histograms("spectral_norms_over_bound")[0].histogram_value
    assert share.sum == pytest.approx(sum(true[1][name] / bounds[name] for name in bounds))


def test_any_writer_will_do() -> None:
    training, notes = Training(max_norm=0.5), BoardNotes()
    true = training.step()
    NormLogger(TensorBoardWriter(notes), training.attachment, tag="norm").write(17)
    assert notes.scalars == [
        ("norm/0", pytest.approx(true["0"], rel=1e-6), 17),
        ("norm/2", pytest.approx(true["2"], rel=1e-6), 17),
        ("norm_bound/0", 0.5, 17),
        ("norm_bound/2", 0.5, 17),
    ]
    assert notes.histograms == [
        ("norms", pytest.approx(list(true.values()), rel=1e-6), 17),
        ("norms_over_bound", pytest.approx([2 * norm for norm in true.values()], rel=1e-6), 17),
    ]
