"""Layers followed by full vectors, against dense decompositions."""

from __future__ import annotations

import pytest
import torch
from cases import LowRank
from engine_stages import of_seed
from torch import nn

from oracle import dense_norm
from spectralclip import find_layers
from spectralclip._training.engine.build import stages_of
from spectralclip._training.engine.stage import Stage
from spectralclip._training.engine.vectors import Vectors, reduced

LAYERS = {
    "reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 6, 6)),
    "replicate": (lambda: nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode="replicate"), (3, 7, 7)),
    "custom": (lambda: LowRank(8, 3, 6), (8,)),
}


def stages(layer: nn.Module, shape: tuple[int, ...], bound: float) -> list[Stage]:
    found = find_layers(nn.Sequential(layer), torch.zeros(2, *shape), "none")
    made = stages_of(found, 0.01, 8, 0)
    for stage in made:
        stage.bounds.fill_(bound)
        stage.is_active.fill_(True)
        with torch.no_grad():
            stage.warm_up(80)
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_those_of_the_layer_with_its_borders(name: str) -> None:
    make, shape = LAYERS[name]
    layer = of_seed(make)
    *_, last = stages(layer, shape, 1.0)  # what is inside an image goes before the borders
    assert [type(group) for group in last.groups] == [Vectors]
    with torch.no_grad():
        assert float(last.norms()) == pytest.approx(dense_norm(layer, shape), rel=1e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_cuts_bring_a_layer_to_its_target(name: str) -> None:
    make, shape = LAYERS[name]
    layer = of_seed(make)
    bound = 0.8 * dense_norm(layer, shape)
    made = stages(layer, shape, bound)
    with torch.no_grad():
        for _ in range(8):
            for stage in made:
                for own, values in zip(stage.parameters(), stage.run(far=True), strict=True):
                    for parameter, value in zip(own, values, strict=True):
                        parameter.copy_(value)
    assert 0.9 * bound <= dense_norm(layer, shape) <= 1.005 * bound


def test_a_large_image_is_made_smaller_and_keeps_its_borders() -> None:
    layer = of_seed(lambda: nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode="reflect"))
    small = reduced(layer, (3, 33, 40))
    assert small[0] == 3 and small[1] % 2 == 1 and small[2] % 2 == 0 and max(small[1:]) < 33
    full = dense_norm(layer, (3, 33, 40))
    assert dense_norm(layer, small) == pytest.approx(full, rel=0.02)


@pytest.mark.parametrize("is_zero", [False, True])
def test_a_layer_grows_by_a_power_for_each_factor_that_moves(is_zero: bool) -> None:
    layer = of_seed(lambda: LowRank(8, 3, 6))
    if is_zero:  # so that the other factor makes no difference
        with torch.no_grad():
            next(layer.parameters()).zero_()
    (stage,) = stages(layer, (8,), 1.0)
    (group,) = stage.groups
    assert group.degree == pytest.approx(len(group.parameters()), rel=1e-5)
    assert len(group.parameters()) == (1 if is_zero else 2)
