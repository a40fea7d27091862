"""Farnia by itself; what it shares with Gouk is in test_gouk.py."""

from __future__ import annotations

import pytest
import torch
from power_cases import at_rest
from torch import nn

from spectralclip import attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines.farnia import Farnia


def test_farnia_has_no_estimate_of_batch_norms() -> None:
    with pytest.raises(OutsideDomain, match="not BatchNorm2d"):
        Farnia.estimate(nn.BatchNorm2d(2), (2, 3, 3))


def test_one_warm_iteration_needs_many_steps() -> None:
    assert at_rest(Farnia(), 1) > 1.2
    assert at_rest(Farnia(), 300) == pytest.approx(1, abs=1e-3)


def test_a_state_of_other_input_shapes_is_refused() -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3))
    attachment = attach(model, None, torch.zeros(1, 2, 9), method=Farnia())
    attachment.step()
    state = attachment.state_dict()
    state["layers"]["0"] *= 2
    with pytest.raises(ValueError, match="for 2 input shapes, expected 1"):
        attachment.load_state_dict(state)
