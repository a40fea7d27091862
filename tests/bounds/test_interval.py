"""What an interval says of itself."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from spectralclip._bounds import Interval


def test_an_interval() -> None:
    interval = Interval(2.0, 2.5, "probabilistic", 1e-6)
    assert 2.0 in interval
    assert torch.tensor(2.5) in interval
    assert 1.99 not in interval
    assert 2.51 not in interval
    assert interval.width == 0.25
    assert Interval(0.0, 0.0, "exact", 0.0).width == 0
    assert Interval(0.0, 1.0, "exact", 0.0).width == math.inf
    with pytest.raises(dataclasses.FrozenInstanceError):
        interval.upper = 3.0  # type: ignore[misc]
