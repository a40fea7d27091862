"""Products of two factors that train: their true norms, and that both factors give way alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Generator, Tensor, nn

from spectralclip._operators import Factor
from spectralclip._training.engine.products import Pair, Products, WholeBlocks
from spectralclip._training.engine.stage import Stage

BOUND = 0.15


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Product:
    """Two factors of random entries, the second with offsets."""

    def __init__(self, name: str, sides: tuple[int, int], inner: int, scale: float) -> None:
        generator = Generator().manual_seed(ord(name))
        self.first, self.second, self.offset = (
            nn.Parameter(scale * torch.randn(shape, generator=generator) / sides[0] ** 0.5)
            for shape in ((inner, sides[0]), (sides[1], inner), (inner,))
        )
        left = Factor(self.first, slice(None), in_rows=True, is_last=True, scale=0.5)
        right = Factor(self.second, slice(None), in_rows=False, offset=self.offset)
        self.pair = Pair(name, left, right)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Both factors, `(units, inputs)`, in double precision."""
        right = torch.cat([self.second.T, self.offset[:, None]], 1)
        return self.first.detach().double(), right.detach().double()

    def norm(self) -> float:
        """By a dense singular value decomposition."""
        left, right = self.matrices()
        return float(torch.linalg.matrix_norm(0.5 * left.mT @ right, 2))


def products(inner: int, sides: tuple[int, int], scale: float = 1.0) -> list[Product]:
    return [Product(name, sides, inner, scale) for name in "abc"]


def stage_of(own: list[Product]) -> Stage:
    group = Products([one.pair for one in own])
    stage = Stage([WholeBlocks([group], by_products=False)], headroom=0.01)
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
    own = products(inner, sides)
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
    own = products(6, (16, 24))
    stage, pair = stage_of(own), own[0]
    for _ in range(5):
        step(stage, far=True)
    pair.first.mul_(1.05)
    before = pair.matrices()
    left, values, right = torch.linalg.svd(before[0].mT @ before[1], full_matrices=False)
    step(stage)
    shares = [
        torch.linalg.vector_norm(new @ basis, dim=0) / torch.linalg.vector_norm(old @ basis, dim=0)
        for new, old, basis in zip(
            pair.matrices(), before, (left[:, :6], right[:6].mT), strict=True
        )
    ]
    above = 0.5 * values[:6] > BOUND
    assert above.any()
    assert shares[0][above].max() < 0.99
    assert torch.allclose(shares[0], shares[1], atol=2e-3)


def test_what_is_within_its_bound_stays_bit_for_bit() -> None:
    own = products(6, (16, 24), scale=0.1)
    before = [(pair.first.clone(), pair.second.clone()) for pair in own]
    own[1].first.mul_(50)
    step(stage_of(own))
    for index in (0, 2):
        assert torch.equal(own[index].first, before[index][0])
        assert torch.equal(own[index].second, before[index][1])
    assert own[1].norm() <= 1.01 * BOUND


def test_a_factor_that_is_not_finite_leaves_the_others_exact() -> None:
    own, alone = products(6, (16, 24)), products(6, (16, 24))
    stages = stage_of(own), stage_of(alone)
    own[1].second[0, 0] = torch.nan
    kept = own[1].first.clone()
    for stage in stages:
        step(stage)
    for index in (0, 2):
        assert torch.equal(own[index].first, alone[index].first)
        assert torch.equal(own[index].second, alone[index].second)
    assert torch.equal(own[1].first, kept)
    assert stages[0].is_non_finite.tolist() == [False, True, False]
