"""Flows that are alike are bounded once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from oracle.slopes import Function
from spectralclip import Interval
from spectralclip._lipschitz.bounds import lipschitz_bounds


def test_examples_that_take_one_way_are_asked_for_but_once() -> None:
    asked = []

    def interval_of(modules: Any, in_shape: Any) -> Any:
        asked.append(tuple(modules))
        return Interval(1.0, 2.0, "exact", 0.0)

    layer = nn.Linear(4, 4)
    model = Function(lambda x, f: f(x) if bool(x[0, 0] > 0) else F.relu(f(x)), layer)
    bound = lipschitz_bounds(model, torch.eye(4) - 0.5, interval_of=interval_of, local=False)
    assert asked == [(layer,)] and bound.upper == 2.0
