"""The examples beside classifiers, in a short form: a flow, and two kinds of critics."""

from __future__ import annotations

import pytest
from example_runs import run_example


def numbers(line: str, name: int = 16) -> list[float]:
    """What follows the name of a row, which is so long."""
    return [float(word) for word in line[name:].split()]


def test_invertible_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, free, held = run_example("invertible_block.py", monkeypatch, capsys)
    bound, _, integral, error = numbers(held)
    assert bound <= 0.9 and error < 1e-5
    assert 0.8 < integral < 1.0001  # after a few steps some of it is outside of the plane
    assert len(numbers(free)) == 4


def test_wasserstein_critic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy")
    first, _, penalized, held = run_example("wasserstein_critic.py", monkeypatch, capsys)
    distance = float(first.split()[-1])
    mean, largest, bound, estimate, proved = numbers(held)
    assert mean <= largest <= bound <= 1 and 0 < estimate <= proved < distance
    assert len(numbers(penalized)) == 5


def test_rl_critic(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [numbers(line, 26) for line in run_example("rl_critic.py", monkeypatch, capsys)[1:]]
    assert len(rows) == 4 and all(len(row) == 3 for row in rows)
    assert rows[1][0] <= 1 and rows[3][0] <= 1


def test_attention_logits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, free, held = run_example("attention_logits.py", monkeypatch, capsys)
    assert numbers(held)[1] <= 0.255 and len(numbers(free)) == 3
