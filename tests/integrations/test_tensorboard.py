"""Norms in TensorBoard, written by torch's own writer and read back by TensorBoard's reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from integration_parts import Scale, dense_norm
from seeds import seeded
from torch import nn

from spectralclip._training.attach import attach
from spectralclip._training.attachment import Attachment
from spectralclip.integrations.tensorboard import NormLogger, log_norms


class Notes:
    """A writer that is no SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.histograms: list[tuple[str, list[float], int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        self.histograms.append((tag, list(values), step))


class Training:
    def __init__(self, **settings: Any) -> None:
        with seeded(1):
            self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.attachment: Attachment = attach(
            self.model, self.optimizer, torch.zeros(1, 6), method=Scale(), **settings
        )

    def step(self) -> dict[str, float]:
        (-self.model(torch.ones(4, 6)).square().sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {name: dense_norm(self.model[int(name)].weight) for name in ("0", "2")}


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
        logger = NormLogger(writer, training.attachment, every=2)
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
    training, notes = Training(max_norm=0.5), Notes()
    log_norms(notes, training.attachment)
    assert notes.scalars == []  # nothing is known before the first step
    true = training.step()
    log_norms(notes, training.attachment, 17, tag="norm")
    assert notes.scalars == [
        ("norm/0", pytest.approx(true["0"], rel=1e-6), 17),
        ("norm_bound/0", 0.5, 17),
        ("norm/2", pytest.approx(true["2"], rel=1e-6), 17),
        ("norm_bound/2", 0.5, 17),
    ]
    assert [(tag, len(values), step) for tag, values, step in notes.histograms] == [
        ("norms", 2, 17),
        ("norms_over_bound", 2, 17),
    ]


def test_rounds_without_a_step_and_resumed_runs_write_nothing_twice() -> None:
    training, notes = Training(), Notes()
    logger = NormLogger(notes, training.attachment, every=2)
    for _ in range(2):
        training.step()
        for _ in range(3):
            logger.step()
    assert [step for tag, _, step in notes.scalars if tag == "spectral_norm/0"] == [2]

    resumed, more = Training(), Notes()
    resumed.attachment.load_state_dict(training.attachment.state_dict())
    logger = NormLogger(more, resumed.attachment, every=2)
    logger.step()
    assert more.scalars == []
    for _ in range(2):
        resumed.step()
        logger.step()
    assert [step for tag, _, step in more.scalars if tag == "spectral_norm/0"] == [4]


def test_a_bad_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="positive number of steps, got 0"):
        NormLogger(Notes(), Training().attachment, every=0)
