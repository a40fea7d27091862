"""The warm tracker stays below the norm, finds it, and follows it while weights move."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import LinearOperator, as_operator
from spectralclip._operators import operator_at
from spectralclip._operators.affine import AffineFunction
from spectralclip._spectrum.warm_tracker import RitzTracker


def operator_of(weight: Tensor) -> LinearOperator:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return as_operator(layer, (weight.shape[1],))


def started(width: int, columns: int, dtype: torch.dtype = torch.float64) -> RitzTracker:
    tracker = RitzTracker(width)
    generator = torch.Generator().manual_seed(width)
    tracker.start(torch.randn(width, columns, generator=generator, dtype=dtype))
    return tracker


def norm_of(weight: Tensor) -> float:
    return float(np.linalg.norm(weight.double().numpy(), 2))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_come_from_below_and_converge(width: int, dtype: torch.dtype, seed: int) -> None:
    """Also long after convergence, when residuals are nothing but rounding."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(40, 30, generator=generator, dtype=torch.float64).to(dtype)
    op, tracker = operator_of(weight), started(width, 30, dtype)
    norm, last = norm_of(weight), 0.0
    rounding = 1e-5 if dtype == torch.float32 else 1e-9
    for _ in range(60):
        seen = tracker.refresh(op)
        tracker.keep()
        first = float(seen.S[0])
        assert first <= norm * (1 + rounding)
        assert first >= last * (1 - rounding)
        last = first
    assert last == pytest.approx(norm, rel=1e-5)


def test_several_values_converge_with_their_vectors() -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(25, 20, generator=generator, dtype=torch.float64)
    op, tracker = operator_of(weight), started(4, 20)
    for _ in range(80):
        seen = tracker.refresh(op)
        tracker.keep()
    expected = torch.linalg.svdvals(weight)[:4]
    torch.testing.assert_close(seen.S, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(seen.V @ seen.V.T, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(seen.V @ weight.T, expected[:, None] * seen.U, rtol=0, atol=1e-3)


def test_a_convolution_is_followed_on_images() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect").double()
    op = as_operator(layer, (2, 6, 6))
    tracker = started(3, 72)
    for _ in range(80):
        seen = tracker.refresh(op)
        tracker.keep()
    norm = dense_norm(layer.eval(), (2, 6, 6))
    assert float(seen.S[0]) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("width", [2, 4])
def test_a_matrix_that_drifts_is_followed(width: int) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    heading = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    tracker = started(width, 40)
    op = operator_of(weight)
    for _ in range(30):
        tracker.refresh(op)
        tracker.keep()
    close = []
    for _ in range(100):
        # As of momentum: mostly the same way as before, and some noise.
        noise = torch.randn(40, 40, generator=generator, dtype=torch.float64)
        heading = 0.9 * heading + 0.1**0.5 * noise
        weight = weight + 0.003 * heading
        seen = tracker.refresh(operator_of(weight))
        tracker.keep()
        norm = norm_of(weight)
        assert float(seen.S[0]) <= norm * (1 + 1e-12)
        close.append(float(seen.S[0]) >= (1 - 1e-3) * norm)
    assert np.mean(close) >= 0.9


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_said_and_spoils_nothing(bad: float) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(12, 10, generator=generator, dtype=torch.float64)
    layer = nn.Linear(10, 12, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
    function, tracker = AffineFunction([layer], (10,)), started(2, 10)
    for _ in range(30):
        good = tracker.refresh(operator_at(function))
        tracker.keep()
    with torch.no_grad():
        layer.weight[3, 4] = bad
    seen = tracker.refresh(operator_at(function))
    assert torch.isnan(seen.S).all()
    tracker.keep()
    with torch.no_grad():
        layer.weight.copy_(weight)
    again = tracker.refresh(operator_at(function))
    torch.testing.assert_close(again.S, good.S)


def test_a_look_that_is_not_kept_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(12, 10, generator=generator, dtype=torch.float64)
    op, tracker = operator_of(weight), started(2, 10)
    first = tracker.refresh(op)
    second = tracker.refresh(op)
    assert torch.equal(first.S, second.S)
    assert torch.equal(first.V, second.V)


def test_other_rows_are_taken_into_account_and_counted() -> None:
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(12, 10, generator=generator, dtype=torch.float64)
    leading = torch.linalg.svd(weight).Vh[:1]
    op, tracker = operator_of(weight), started(1, 10)
    without = tracker.refresh(op)
    seen = tracker.refresh(op, others=3.0 * leading)
    assert float(seen.S[0]) == pytest.approx(norm_of(weight), rel=1e-9)
    assert seen.num_matvecs == without.num_matvecs + 1
    # One vector forward and back, and its residual.
    assert without.num_matvecs == 3


def test_the_rise_is_what_a_look_has_won() -> None:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    op, tracker = operator_of(weight), started(1, 30)
    first = tracker.refresh(op)
    tracker.keep()
    second = tracker.refresh(op)
    assert tracker.gain == pytest.approx(float(second.S[0] - first.S[0]), rel=1e-6)
    assert tracker.gain > 0
    for _ in range(60):
        tracker.keep()
        tracker.refresh(op)
    assert abs(tracker.gain) < 1e-6


def test_a_matrix_of_zeros_has_a_value_of_zero() -> None:
    tracker = started(2, 6)
    seen = tracker.refresh(operator_of(torch.zeros(5, 6, dtype=torch.float64)))
    tracker.keep()
    assert torch.equal(seen.S, torch.zeros_like(seen.S))
    for rows in (seen.U, seen.V):
        assert torch.isfinite(rows).all()
