"""What every dashboard is told, and when."""

from __future__ import annotations

import pytest
import torch
from integration_parts import Notes, Training
from torch import nn

from spectralclip import attach
from spectralclip.integrations import NormLogger


def test_a_record_is_what_is_known_of_the_layers() -> None:
    training, notes = Training(max_norm={"0": 0.4, "2": 0.6}), Notes()
    logger = NormLogger(notes, training.attachment, tag="norm")
    logger.write()
    assert notes.records == []  # nothing is known before the first step
    true = training.step()
    logger.write(17)
    (record,) = notes.records
    assert record.scalars() == {
        "norm/0": pytest.approx(true["0"], rel=1e-6),
        "norm/2": pytest.approx(true["2"], rel=1e-6),
        "norm_bound/0": 0.4,
        "norm_bound/2": 0.6,
    }
    assert record.step == 17
    assert {type(value) for value in record.scalars().values()} == {float}


def test_pressures_and_the_network_are_there_where_they_are_known() -> None:
    training, notes = Training(max_norm=0.5), Notes()
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    for _ in range(2):
        training.step()
    NormLogger(notes, training.attachment, inputs=inputs).write()
    scalars, report = notes.records[0].scalars(), training.attachment.report(inputs)
    assert report.bound is not None
    assert scalars["spectral_norm_network/bound"] == report.bound <= 0.25 * (1 + 1e-6)
    assert scalars["spectral_norm_network/spread"] == report.spread
    assert scalars["spectral_norm_network/gain"] == report.gain
    pressures = {name: scalars[f"spectral_norm_pressure/{name}"] for name in ("0", "2")}
    assert pressures == training.attachment.pressures() and max(pressures.values()) > 0


def test_a_network_without_a_bound_has_no_such_curve() -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    model, notes = nn.Sequential(nn.Linear(4, 4), Square()), Notes()
    attachment = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(1, 4))
    attachment.step()
    NormLogger(notes, attachment, inputs=torch.eye(4)).write()
    assert set(notes.records[0].network) == {"spread", "gain"}


def test_rounds_without_a_step_and_resumed_runs_write_nothing_twice() -> None:
    training, notes = Training(), Notes()
    logger = NormLogger(notes, training.attachment, every=2)
    for _ in range(2):
        training.step()
        for _ in range(3):
            logger.step()
    assert notes.steps == [2]

    resumed, more = Training(), Notes()
    resumed.attachment.load_state_dict(training.attachment.state_dict())
    logger = NormLogger(more, resumed.attachment, every=2)
    logger.step()
    assert more.steps == []
    for _ in range(2):
        resumed.step()
        logger.step()
    assert more.steps == [4]


def test_bad_arguments_are_refused() -> None:
    for every in (0, 2.5, "5"):
        with pytest.raises(ValueError, match=f"positive number of steps, got {every!r}"):
            NormLogger(Notes(), Training().attachment, every=every)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="attachment must be what attach returned, got Linear"):
        NormLogger(Notes(), torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write\(record\), such as CsvWriter\(path\).*got 'norms"):
        NormLogger("norms.csv", Training().attachment)  # type: ignore[arg-type]
