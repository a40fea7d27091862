"""Networks put together at random, against sampled slopes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oracle.slopes import jacobian_norms, largest_slope
from spectralclip._lipschitz.bounds import lipschitz_bounds

SIDE = 6


class Drawn(nn.Module):
    """Each step reads earlier values, all of shape (2, SIDE), and makes another one."""

    def __init__(self, plan: list[tuple[str, int, int, float]], ends: list[int]) -> None:
        super().__init__()
        self.plan, self.ends = plan, ends
        generator = torch.Generator().manual_seed(len(plan))
        weights = torch.randn(len(plan), SIDE, SIDE, generator=generator) / 2
        self.weights = nn.ParameterList(list(weights))

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for place, (kind, first, second, number) in enumerate(self.plan):
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(self._step(kind, a, b, number, self.weights[place]))
        return torch.cat([values[end % len(values)] for end in self.ends], 1)

    def _step(self, kind: str, a: Tensor, b: Tensor, number: float, weight: Tensor) -> Tensor:
        match kind:
            case "linear":
                return F.linear(a, weight)
            case "relu in place":
                return (a + 0).relu_()
            case "add":
                return a + number * b
            case "subtract in place":
                y = a.clone()
                y -= b
                return y
            case "cat":
                return torch.cat([a[:, :1], b[:, 1:]], 1)
            case "max pool":
                return F.max_pool1d(a, 3, 1, 1)
            case "average pool":
                return F.avg_pool1d(a, 3, 1, 1)
            case "scale":
                return number * a
            case "maximum":
                return torch.maximum(a, b)
            case "write":
                y = a.clone()
                y[:, :, : SIDE // 2] = b[:, :, SIDE // 2 :]
                return y
            case "softmax":
                return 3 * a.softmax(-1)
            case "mean":
                return a - b.mean(-1, keepdim=True)
            case _:
                return F.gelu(a)


KINDS = [
    *("linear", "relu in place", "add", "subtract in place", "cat", "max pool", "average pool"),
    *("scale", "maximum", "write", "softmax", "mean", "gelu"),
]
STEPS = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 6), st.integers(0, 6), st.floats(-2, 2, width=32)
)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    plan=st.lists(STEPS, min_size=2, max_size=7),
    ends=st.lists(st.integers(1, 7), min_size=1, max_size=2),
)
def test_no_slope_of_a_random_network_exceeds_its_bound(
    plan: list[tuple[str, int, int, float]], ends: list[int]
) -> None:
    model = Drawn(plan, ends)
    bound = lipschitz_bounds(model, torch.zeros(1, 2, SIDE))
    assert bound.unbounded == ()
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3, 2, SIDE, generator=generator)
    steepest = max(
        float(jacobian_norms(model, points).max()), largest_slope(model, (2, SIDE), 1000)
    )
    assert steepest <= bound.upper * (1 + 1e-6) + 1e-9
    assert bound.lower <= bound.upper * (1 + 1e-6) + 1e-9
    assert bound.upper <= bound.product * 1.0101 + 1e-9
