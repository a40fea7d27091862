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


def test_a_view_that_other_strides_allow_is_replayed() -> None:
    def tokens(x: torch.Tensor) -> torch.Tensor:
        y = x.permute(0, 2, 3, 1).view(len(x), x.shape[2], -1)  # as channels-last memory allows
        return y - y.mean(1, keepdim=True)

    x = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)
    bound = lipschitz_bounds(Function(tokens), x)
    assert 1 - 1e-3 <= bound.upper <= 1.01 < bound.product
