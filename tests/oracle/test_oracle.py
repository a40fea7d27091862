"""The oracle agrees with itself, by ways that share nothing, and knows nothing of the library."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import old_weight_norm
from torch import nn

import oracle
from oracle import krylov

MODULES = sorted(Path(oracle.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_it_imports_nothing_of_the_library(file: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert not names & {"spectralclip", "experiments", "benchmarks", "tests"}


def circular(kernel: int, stride: int, dilation: int, groups: int) -> nn.Conv2d:
    padding = dilation * (kernel // 2)
    return nn.Conv2d(4, 6, kernel, stride, padding, dilation, groups, padding_mode="circular")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_symbols_have_the_values_of_the_matrix(
    kernel: int, stride: int, dilation: int, groups: int
) -> None:
    conv, sides = circular(kernel, stride, dilation, groups), (8, 6)
    values = oracle.singular_values(conv, (4, *sides))
    np.testing.assert_allclose(oracle.symbol_values(conv, sides), values, atol=1e-12)
    assert oracle.symbol_norms(conv, sides).max() == pytest.approx(values[0], rel=1e-12)


def test_symbols_of_one_and_of_three_axes() -> None:
    one = nn.Conv1d(3, 2, 3, stride=2, padding=1, padding_mode="circular")
    three = nn.Conv3d(2, 1, 3, padding=1, padding_mode="circular")
    for conv, sides in ((one, (8,)), (three, (3, 4, 3))):
        expected = oracle.dense_norm(conv, (conv.in_channels, *sides))
        assert oracle.symbol_norms(conv, sides).max() == pytest.approx(expected, rel=1e-12)


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "wide": (nn.Linear(40, 9), (40,)),
    "tall": (nn.Linear(9, 40), (9,)),
    "zeros": (nn.Conv2d(2, 3, 3, padding=1), (2, 7, 6)),
    "reflect": (nn.Conv2d(3, 2, 3, stride=2, padding=1, padding_mode="reflect"), (3, 8, 8)),
    "transposed": (nn.ConvTranspose2d(2, 2, 3, stride=2), (2, 4, 5)),
    "composition": ((nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (2, 6, 6)),
    "batch norm": (nn.BatchNorm2d(4), (4, 5, 5)),
    "half": (nn.Linear(12, 11).bfloat16(), (12,)),
    "hooked": (old_weight_norm(), (2, 6, 6)),
}


@pytest.mark.parametrize("search", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [0, 10**6], ids=["arpack", "dense"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_norm_is_that_of_the_matrix(
    name: str, side: int, search: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, in_shape = LAYERS[name]
    monkeypatch.setattr(krylov, "DENSE_SIDE", side)
    monkeypatch.setattr(krylov, "BASIS", 8)
    found = oracle.true_norm(layer, in_shape, search=search, starts=2)
    assert found.value == pytest.approx(np.linalg.norm(oracle.dense_matrix(layer, in_shape), 2))
    assert oracle.dense_norm(layer, in_shape) == pytest.approx(found.value)
    assert found.residual < 1e-5


@pytest.mark.parametrize("polish", [True, False])
def test_leading_values_are_those_of_the_matrix(
    polish: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(krylov, "DENSE_SIDE_OF_SPECTRA", 0)
    for layer, in_shape in (
        (nn.Conv2d(4, 4, 3, padding=1), (4, 12, 12)),
        (nn.Conv2d(4, 5, 1, stride=2), (4, 5, 6)),
        (circular(3, 1, 1, 1), (4, 6, 6)),
        (nn.Linear(90, 80), (90,)),
    ):
        expected = oracle.singular_values(layer, in_shape)[:6]
        found = oracle.leading_values(layer, in_shape, 6, polish=polish)
        np.testing.assert_allclose(found, expected, rtol=1e-8 if polish else 1e-5)


def test_values_of_decayed_weights_are_as_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krylov, "DENSE_SIDE_OF_SPECTRA", 0)
    layer = nn.Conv2d(3, 8, 3, padding=1)
    expected = 1e-8 * oracle.dense_norm(layer, (3, 14, 14))
    leading = 1e-8 * oracle.singular_values(layer, (3, 14, 14))[:3]
    with torch.no_grad():
        layer.weight *= 1e-8
    found = oracle.true_norm(layer, (3, 14, 14))
    assert found.value == pytest.approx(expected, rel=1e-6) and found.residual < 1e-5
    for polish, digits in ((True, 1e-8), (False, 1e-5)):
        values = oracle.leading_values(layer.double(), (3, 14, 14), 3, polish=polish)
        np.testing.assert_allclose(values, leading, rtol=10 * digits)


def test_a_layer_of_zeros_and_one_that_is_not_finite() -> None:
    layer = nn.Linear(500, 450)
    nn.init.zeros_(layer.weight)
    assert oracle.true_norm(layer, (500,)).value == 0.0 == oracle.dense_norm(layer, (500,))
    with torch.no_grad():
        layer.weight[3, 4] = math.nan
    assert math.isnan(oracle.true_norm(layer, (500,)).value)
    assert math.isnan(oracle.dense_norm(layer, (500,)))


def test_copies_are_evaluated_and_the_layer_is_left_alone() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    matrix = oracle.dense_matrix(layer, (4,))
    scale = 1 / math.sqrt(1 + layer[2].eps)
    np.testing.assert_allclose(matrix, scale * layer[0].weight.detach().double(), rtol=1e-12)
    assert layer.training and layer[0].weight.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_tracked_norms_are_those_of_the_matrices() -> None:
    model = nn.ModuleDict(
        {
            "dense": nn.Linear(30, 20),
            "zeros": nn.Conv2d(2, 3, 3, padding=1),
            "circular": circular(3, 2, 1, 1),
            "point": nn.Conv2d(3, 4, 1),
            "none": nn.Conv2d(2, 3, 3, padding_mode="circular"),
        }
    )
    shapes = {
        **{"dense": [(30,)], "zeros": [(2, 9, 8), (2, 5, 5)], "circular": [(4, 6, 8)]},
        **{"point": [(3, 5, 5)], "none": [(2, 7, 7)]},
    }
    layers = {
        name: SimpleNamespace(modules=(module,), in_shapes=shapes[name])
        for name, module in model.items()
    }
    tracked = oracle.TrackedNorms(layers)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        expected = {
            name: max(oracle.dense_norm(module, shape) for shape in shapes[name])
            for name, module in model.items()
        }
        assert tracked.norms() == pytest.approx(expected, rel=1e-5)
        assert tracked.largest()[1] == max(expected, key=lambda name: expected[name])
    assert tracked.disagreement() < 1e-5
