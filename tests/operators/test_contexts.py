"""Whatever the surroundings of the caller, an operator is the same, and nothing stays switched."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from cases import CASES, Case, params
from operator_cases import operator, random_pair
from torch import Tensor, nn

import spectralclip as sc
from spectralclip import as_operator

SURROUNDINGS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "plain": nullcontext,
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "generic"])
@pytest.mark.parametrize(
    "case",
    params([c for c in CASES if c.name in ("linear-wide", "conv-bn", "residual", "zero-pad-conv")]),
)
def test_surroundings_do_not_change_the_operator(
    case: Case, explicit: bool, surroundings: str, generator: torch.Generator
) -> None:
    context: AbstractContextManager[object] = SURROUNDINGS[surroundings]()
    plain, layer = operator(case, explicit=explicit), case.make()
    x, y = random_pair(plain, 2, generator)
    with context:
        op = as_operator(layer, case.in_shape, explicit=explicit)
        got = op.matvec(x), op.rmatvec(y), op.gram(x), op.pullback(y, x)
    expected = plain.matvec(x), plain.rmatvec(y), plain.gram(x), plain.pullback(y, x)
    close = {"rtol": 1e-5, "atol": 1e-5}
    for mine, theirs in zip(got[:3], expected[:3], strict=True):
        torch.testing.assert_close(mine.clone(), theirs, **close)
    for name, gradient in expected[3].items():
        torch.testing.assert_close(got[3][name].clone(), gradient, **close)


def test_operator_made_in_inference_mode_works_outside(generator: torch.Generator) -> None:
    layer = nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(2, 3, 3))
    with torch.inference_mode():
        op = as_operator(layer, (2, 5, 5))
    x, y = random_pair(op, 1, generator)
    left, right = torch.sum(op.matvec(x) * y), torch.sum(x * op.rmatvec(y))
    assert float(left) == pytest.approx(float(right), rel=1e-4)
    assert float(op.rmatvec(y).norm()) > 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.level.add_(1)
        return self.linear(x)


def test_buffers_that_a_forward_pass_writes_into_stay_as_they_were() -> None:
    layer = Counting()
    sc.svds(layer, (4,), 2)
    assert int(layer.calls) == 0
    assert not layer.level.any()
