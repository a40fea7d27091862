"""Matrices that are clipped within a block of leading vectors, against dense decompositions."""

from __future__ import annotations

import pytest
import torch
from engine_stages import norms, of_seed, run, stage_of
from torch import Tensor, nn

from spectralclip._training.engine.matrices import Matrices
from spectralclip._training.engine.tuning import TUNING

SHAPES = {
    "wide": lambda: nn.Linear(90, 20),
    "tall": lambda: nn.Linear(20, 90),
    "larger than a block": lambda: nn.Linear(70, 60),
    "1x1": lambda: nn.Conv2d(12, 40, 1),
    "windows apart": lambda: nn.Conv2d(3, 20, 2, stride=2),
}


def matrix(layer: nn.Module) -> Tensor:
    return layer.weight.detach().flatten(1).double()


def in_shape(layer: nn.Module) -> tuple[int, ...]:
    return (layer.in_features,) if isinstance(layer, nn.Linear) else (layer.in_channels, 4, 4)


@pytest.mark.parametrize("name", SHAPES)
def test_norms_are_those_of_the_matrix(name: str) -> None:
    layer = of_seed(SHAPES[name])
    stage = stage_of(layer, in_shape(layer))
    assert [type(group) for group in stage.groups] == [Matrices]
    expected = float(torch.linalg.matrix_norm(matrix(layer), 2))
    assert float(norms(stage)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_above_is_clipped_and_all_else_stays(name: str) -> None:
    layer = of_seed(SHAPES[name])
    U, S, Vh = torch.linalg.svd(matrix(layer), full_matrices=False)
    bound = float(S[3])  # three values are above
    stage = stage_of(layer, in_shape(layer), bound=bound, warm=200)
    run(stage, 3, far=True)
    target = (1 - 0.01) * bound
    expected = U @ torch.diag(S.clamp(max=target)) @ Vh
    assert float(torch.linalg.matrix_norm(matrix(layer), 2)) <= 1.001 * bound
    assert float(torch.linalg.matrix_norm(matrix(layer) - expected)) <= 0.02 * float(S[0])


def test_small_sides_are_seen_whole() -> None:
    small, large = nn.Linear(90, TUNING.block), nn.Linear(90, TUNING.block + 1)
    found = [stage_of(layer, (90,), warm=1).groups[0].is_seen_whole for layer in (small, large)]
    assert found == [True, False]
