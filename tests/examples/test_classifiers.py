"""The examples that train classifiers, in a short form."""

from __future__ import annotations

import re

import pytest
from example_runs import run_example


def numbers(line: str) -> list[float]:
    return [float(one) for one in re.findall(r"(?<= )[\d.]+(?:e-?\d+)?(?=%| |$)", line[20:])]


def test_learning_ladder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [numbers(line) for line in run_example("learning_ladder.py", monkeypatch, capsys)[1:]]
    spreads, _, bounds = zip(*rows, strict=True)
    assert spreads[0] < 1e-4 < spreads[2] < spreads[3] < spreads[4]
    assert max(bounds[:4]) <= 1.001 and bounds[4] <= 10.01


def test_certified_classifier(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in run_example("certified_classifier.py", monkeypatch, capsys)[1:]:
        bound, *shares = numbers(line)
        assert bound <= 1.0
        assert shares == sorted(shares, reverse=True) and len(shares) == 4


def test_batch_norm_classifier(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in run_example("batch_norm_classifier.py", monkeypatch, capsys)[2:]:
        bound, accuracy, certified = numbers(line)
        assert bound <= 10.0 and certified <= accuracy
