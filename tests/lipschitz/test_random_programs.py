"""Random programs from the table of operations: none is steeper anywhere than its bound."""

from __future__ import annotations

import math

import pytest
import torch
from random_programs import INPUT, Program

from oracle.slopes import climbed
from spectralclip._lipschitz.bounds import lipschitz_bounds

FEW, MANY, BLOCK = 24, 2000, 100


def checked(seed: int, starts: int) -> bool:
    """Whether a program has a bound; it is then compared with the steepest place found."""
    program = Program(seed)
    example = torch.randn(1, INPUT, generator=torch.Generator().manual_seed(seed)).double()
    upper = lipschitz_bounds(program, example, local=False).upper
    if math.isinf(upper):
        return False
    slope = climbed(program, INPUT, seed, starts)
    assert slope <= upper * (1 + 1e-6) + 1e-7, f"program {seed}: slope {slope}, bound {upper}"
    return True


def test_no_program_is_steeper_than_its_bound() -> None:
    assert sum(checked(seed, starts=1) for seed in range(FEW)) >= FEW // 4


@pytest.mark.slow
@pytest.mark.parametrize("block", range(MANY // BLOCK))
def test_no_program_of_many_is_steeper_than_its_bound(block: int) -> None:
    seeds = range(FEW + BLOCK * block, FEW + BLOCK * (block + 1))
    assert sum(checked(seed, starts=4) for seed in seeds) >= BLOCK // 4
