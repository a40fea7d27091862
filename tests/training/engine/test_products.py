"""Products of two factors that train: their true norms, and that both factors give way alike."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from spectralclip._training.engine.matrices import Blocks
from spectralclip._training.engine.products import Pair, Products
from spectralclip._training.engine.stage import Stage

BOUND = 0.15


@dataclass
class Factors(Pair):
    """Two factors of random entries."""

    name: str
    first: Tensor
    second: Tensor
    factor: float = 0.5

    def left(self) -> Tensor:
        return self.first

    def right(self) -> Tensor:
        return self.second

    def generator(self) -> Generator:
        return Generator().manual_seed(7)

    def norm(self) -> float:
        """By a dense singular value decomposition in double precision."""
        product = self.factor * self.first.double().mT @ self.second.double()
        return float(torch.linalg.matrix_norm(product, 2))


def pairs(inner: int, sides: tuple[int, int], scale: float = 1.0) -> list[Factors]:
    generator = Generator().manual_seed(0)
    shapes = [(inner, side) for side in sides]
    draw = [
        [scale * torch.randn(s, generator=generator) / s[1] ** 0.5 for s in shapes] for _ in "abc"
    ]
    return [Factors(name, *own) for name, own in zip("abc", draw, strict=True)]


def stage_of(own: list[Factors]) -> Stage:
    stage = Stage([Blocks([Products(own)], by_products=False)], headroom=0.01)
    stage.bounds.fill_(BOUND)
    stage.is_active.fill_(True)
    stage.warm_up(12)
    return stage


def step(stage: Stage, *, far: bool = False) -> None:
    for parameters, values in zip(stage.parameters(), stage.run(far=far), strict=True):
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


@pytest.mark.parametrize(("inner", "sides"), [(4, (20, 12)), (64, (96, 96)), (100, (120, 80))])
def test_products_that_grow_stay_within_their_bound(inner: int, sides: tuple[int, int]) -> None:
    own = pairs(inner, sides)
    stage, generator = stage_of(own), Generator().manual_seed(1)
    for _ in range(5):
        step(stage, far=True)
    for _ in range(30):
        for pair in own:
            for tensor in (pair.first, pair.second):
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.add_(noise * 0.02 * tensor.norm() / noise.norm()).mul_(1.01)
        step(stage)
        norms = [pair.norm() / BOUND for pair in own]
        assert max(norms) <= 1.01
    assert min(norms) >= 0.9


def test_both_factors_shrink_by_the_same_share_along_each_singular_pair() -> None:
    own = pairs(6, (16, 24))
    stage, pair = stage_of(own), own[0]
    for _ in range(5):
        step(stage, far=True)
    pair.first.mul_(1.05)
    before = pair.first.double(), pair.second.double()
    left, values, right = torch.linalg.svd(before[0].mT @ before[1], full_matrices=False)
    step(stage)
    shares = [
        torch.linalg.vector_norm(new.double() @ basis, dim=0)
        / torch.linalg.vector_norm(old @ basis, dim=0)
        for new, old, basis in (
            (pair.first, before[0], left[:, :6]),
            (pair.second, before[1], right[:6].mT),
        )
    ]
    above = values[:6] * pair.factor > BOUND
    assert above.any()
    assert shares[0][above].max() < 0.99
    assert torch.allclose(shares[0], shares[1], atol=2e-3)


def test_what_is_within_its_bound_stays_bit_for_bit() -> None:
    own = pairs(6, (16, 24), scale=0.1)
    before = [(pair.first.clone(), pair.second.clone()) for pair in own]
    own[1].first.mul_(50)
    step(stage_of(own))
    for index in (0, 2):
        assert torch.equal(own[index].first, before[index][0])
        assert torch.equal(own[index].second, before[index][1])
    assert own[1].norm() <= 1.01 * BOUND


def test_a_factor_that_is_not_finite_leaves_the_others_exact() -> None:
    own, alone = pairs(6, (16, 24)), pairs(6, (16, 24))
    stages = stage_of(own), stage_of(alone)
    own[1].second[0, 0] = torch.nan
    kept = own[1].first.clone()
    for stage in stages:
        step(stage)
    for index in (0, 2):
        assert torch.equal(own[index].first, alone[index].first)
        assert torch.equal(own[index].second, alone[index].second)
    assert torch.equal(own[1].first, kept)
    assert stages[0].is_lost.tolist() == [False, True, False]
