"""One number for a whole network, as the training benchmark measures it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.training.data import Images, digits
from benchmarks.training.figures import figures
from benchmarks.training.models import small_convnet
from benchmarks.training.network import (
    NetworkRow,
    Setting,
    measure_network,
    times,
    with_center_norm,
    without_batch_norm,
)
from benchmarks.training.render import _network
from spectralclip.nn import CenterNorm

SETTING = Setting(
    "small", lambda: small_convnet(channels=(2, 2, 4)), digits, 8, 4, every=2, warm_up=1
)


@pytest.fixture(scope="module")
def row() -> NetworkRow:
    generator = torch.Generator().manual_seed(0)
    data = (torch.randn(64, 1, 28, 28, generator=generator), torch.arange(64) % 10)
    return measure_network(SETTING, Images("drawn", data, data), seed=0)


def test_a_network_is_held_as_a_whole(row: NetworkRow) -> None:
    assert (row.model, row.seed, row.steps, row.readings) == ("small", 0, 4, 2)
    assert 0.5 < row.bound_least <= row.bound <= 1.02
    assert 0.5 < row.certified <= 1


def test_times_are_of_whole_steps() -> None:
    each = SimpleNamespace(plain=[9.0, 1.0, 2.0, 3.0], after=[9.0, 1.0, 1.0, 1.0])
    whole = SimpleNamespace(plain=[9.0, 2.0, 2.0, 2.0], after=[9.0, 1.0, 1.0, 7.0])
    found: dict[str, float] = times(each, whole, warm_up=1)  # type: ignore[arg-type]
    assert found["step_seconds"] == 2 and found["median_ratio"] == 1
    assert (found["max_norm_after"], found["max_lipschitz_after"]) == (1, 3)
    assert found["ratio"] == pytest.approx(5 / 3)


def test_figures_are_over_the_seeds(row: NetworkRow) -> None:
    rows = [asdict(row) | {"bound": 1.01, "ratio": 1.02, "median_ratio": 1.0, "certified": 0.9}]
    rows.append(rows[0] | {"seed": 1, "bound": 1.03, "ratio": 1.06})
    found: dict[str, Any] = {
        one["figure"]: one for one in figures({"parts": {"network": {"rows": rows}}})
    }
    met = {name.split(": ")[1]: one["met"] for name, one in found.items()}
    assert met == {
        "a step over one with max_norm, mean over seeds": True,
        "the same by medians, mean over seeds": True,
        "the network's bound / L, largest": False,
        "what is proved at the end / L, largest": True,
    }


def test_the_page_has_a_table(row: NetworkRow) -> None:
    part = {"max_norm": 1.0, "max_lipschitz": 10.0, "every": 2, "rows": [asdict(row)]}
    text = _network(part)
    assert "`max_lipschitz=10`, which is L" in text and "every 2th step" in text
    assert "| small | 0 |" in text.replace("  ", " ") and _network(None) == ""


def test_networks_have_no_batch_norm() -> None:
    kinds = {type(part) for part in without_batch_norm(4).modules()}
    assert nn.BatchNorm2d not in kinds and CenterNorm not in kinds
    kinds = {type(part) for part in with_center_norm(4).modules()}
    assert nn.BatchNorm2d not in kinds and CenterNorm in kinds
