"""Norms as CSV, read_lines back by Python's own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration_parts import Training, read_lines

from spectralclip.integrations import NormLogger
from spectralclip.integrations.csv import CsvWriter


def test_lines_are_read_back_and_go_on_in_a_resumed_run(tmp_path: Path) -> None:
    path, expected = tmp_path / "norms.csv", {}
    training = Training(max_norm={"0": 0.4, "2": 0.6})
    for _ in range(2):  # the second time as after a restart
        logger = NormLogger(CsvWriter(path), training.attachment, every=2)
        for _ in range(2):
            true = training.step()
            logger.step()
        step = training.attachment.steps
        for name, bound in (("0", 0.4), ("2", 0.6)):
            expected[step, f"spectral_norm/{name}"] = pytest.approx(true[name], rel=1e-6)
            expected[step, f"spectral_norm_bound/{name}"] = bound
    found = read_lines(path)
    assert {key: value for key, value in found.items() if "pressure" not in key[1]} == expected
    pressures = [(2, "spectral_norm_pressure/0"), (4, "spectral_norm_pressure/2")]
    assert all(key in found for key in pressures)


def test_a_file_of_other_content_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    path.write_text("epoch,loss\n1,0.5\n")
    with pytest.raises(ValueError, match=r"losses\.csv.*step,name,value, got 'epoch,loss'.*new"):
        CsvWriter(path)
    assert path.read_text() == "epoch,loss\n1,0.5\n"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\xff\xfe\x81")
    with pytest.raises(ValueError, match=r"weights\.bin is a file of other content"):
        CsvWriter(path)
    assert path.read_bytes() == b"\xff\xfe\x81"


def test_a_file_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CsvWriter(tmp_path / "gone" / "norms.csv")
