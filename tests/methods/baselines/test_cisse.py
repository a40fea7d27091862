"""Cisse: retraction toward orthonormal rows, on some rows a step; and convex sums."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_cases import (
    EXAMPLE,
    assert_identical,
    sgd,
    small_network,
    snapshot,
    train,
)

from oracle import dense_norm
from spectralclip import NormWarning, attach
from spectralclip.methods import ConvexSum
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines.cisse import Cisse, on_simplex, retracted

FULL = Cisse(beta=0.03, share=1.0)


def stepped(layer: nn.Module, in_shape: tuple[int, ...], method: Cisse, steps: int) -> Any:
    """A layer after so many retractions with a bound of 0.8."""
    model = nn.Sequential(layer)
    attachment = attach(model, None, torch.zeros(1, *in_shape), method=method, max_norm=0.8)
    for _ in range(steps):
        attachment.step()
    return attachment


def rows_of(layer: Any) -> np.ndarray:
    return layer.weight.detach().double().numpy().reshape(len(layer.weight), -1)


# --- The retraction -------------------------------------------------------------------------


def test_the_retraction_is_the_gradient_step_of_the_paper() -> None:
    rows, beta, scale = torch.randn(4, 6, dtype=torch.float64), 0.1, 2.5
    leaf = (math.sqrt(scale) * rows).requires_grad_()
    loss = beta / 4 * (leaf @ leaf.T - torch.eye(4)).square().sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    expected = (leaf - gradient) / math.sqrt(scale)
    torch.testing.assert_close(retracted(rows, beta, scale), expected.detach())


def test_singular_values_go_where_the_cubic_sends_them() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1).double()
    before = np.linalg.svd(rows_of(layer), compute_uv=False)
    attach(
        nn.Sequential(layer), None, torch.zeros(1, 2, 5, 5).double(), method=FULL, max_norm=0.8
    ).step()
    scaled = before * 3 / 0.8  # nine taps
    expected = np.abs((1.03 - 0.03 * scaled**2) * scaled) * 0.8 / 3
    after = np.linalg.svd(rows_of(layer), compute_uv=False)
    np.testing.assert_allclose(after, np.sort(expected)[::-1], rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "in_shape", "taps"),
    [
        (lambda: nn.Linear(8, 5), (8,), 1),
        (lambda: nn.Conv1d(3, 4, 5, padding=2), (3, 9), 5),
        (lambda: nn.Conv2d(3, 6, 3, padding=1), (3, 7, 7), 9),
        (lambda: nn.Conv2d(3, 6, 3, 2, padding=1, padding_mode="circular"), (3, 8, 8), 9),
        (lambda: nn.Conv2d(3, 6, 3, padding=2, dilation=2), (3, 7, 7), 9),
    ],
)
def test_rows_become_orthonormal_and_the_norm_is_within_the_bound(
    make: Callable[[], nn.Module], in_shape: tuple[int, ...], taps: int
) -> None:
    layer = make()
    attachment = stepped(layer, in_shape, FULL, 300)
    rows = rows_of(layer) * math.sqrt(taps) / 0.8
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-3)
    assert dense_norm([layer], in_shape) <= 0.8 * (1 + 1e-3)
    assert attachment.norms()["0"] == pytest.approx(0.8, rel=1e-3)


def test_groups_are_retracted_each_by_itself() -> None:
    layer = nn.Conv2d(8, 4, 3, padding=1, groups=2)
    stepped(layer, (8, 6, 6), FULL, 300)
    for rows in np.split(rows_of(layer) * 3 / 0.8, 2):
        np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-3)
    assert dense_norm([layer], (8, 6, 6)) <= 0.8 * (1 + 1e-3)


def test_some_rows_are_drawn_anew_in_each_step() -> None:
    layer = nn.Linear(12, 10)
    attachment = attach(nn.Sequential(layer), None, torch.zeros(1, 12), method=Cisse(share=0.25))
    seen = []
    for _ in range(30):
        before = layer.weight.detach().clone()
        attachment.step()
        changed = (layer.weight != before).any(1).nonzero().flatten().tolist()
        assert len(changed) == 3
        seen.append(tuple(changed))
        torch.testing.assert_close(layer.weight[changed], retracted(before[changed], 3e-4))
    assert len(set(seen)) > 10
    assert set(sum(seen, ())) == set(range(10))


def test_some_rows_a_step_lead_to_the_same_end() -> None:
    layer = nn.Linear(12, 6)
    stepped(layer, (12,), Cisse(beta=0.1, share=0.34), 600)
    rows = rows_of(layer) / 0.8
    np.testing.assert_allclose(rows @ rows.T, np.eye(6), atol=5e-3)


# --- The estimate, and where it is wrong ----------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"groups": 2}, {"dilation": 2}])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_the_estimate_is_a_bound(mode: str, options: dict[str, int]) -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1, padding_mode=mode, **options)
    estimate = Cisse.estimate(layer, (4, 8, 8))
    groups = np.split(rows_of(layer), layer.groups)
    assert estimate == pytest.approx(3 * max(np.linalg.norm(g, 2) for g in groups), rel=1e-6)
    assert dense_norm([layer], (4, 8, 8)) <= estimate


def averaging(mode: str, **options: int) -> nn.Conv2d:
    """A 5x5 mean: one row, of length 1/5."""
    layer = nn.Conv2d(1, 1, 5, padding=2, padding_mode=mode, **options)
    layer.weight.data.fill_(1 / 25)
    return layer


def test_at_replicated_borders_it_is_none() -> None:
    """Pixels at the border lie in more windows than there are taps."""
    for mode, above in (("zeros", False), ("replicate", True), ("reflect", True)):
        layer = averaging(mode)
        assert Cisse.estimate(layer, (1, 3, 3)) == pytest.approx(1, rel=1e-6)
        assert (dense_norm([layer], (1, 3, 3)) > 1.005) == above


def test_at_circular_borders_that_repeat_outputs_it_is_none() -> None:
    """The padding is wider than half the kernel: windows at one end come again at the other."""
    for padding, above in ((2, False), (3, True)):
        layer = nn.Conv2d(1, 1, 5, padding=padding, padding_mode="circular")
        layer.weight.data.fill_(1 / 25)
        assert Cisse.estimate(layer, (1, 5, 5)) == pytest.approx(1, rel=1e-6)
        assert (dense_norm([layer], (1, 5, 5)) > 1.005) == above
        (promise,) = Cisse.promises
        assert promise.covers(layer) != above


def test_the_estimate_of_weights_that_are_not_finite_is_refused() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.data[1, 1] = math.inf
    with pytest.raises(ValueError, match="Cisse has no estimate of the norm of Linear"):
        Cisse.estimate(layer, (3,))


def test_with_a_stride_the_truth_is_far_below() -> None:
    layer = nn.Conv2d(4, 4, 3, stride=3, padding=1)
    stepped(layer, (4, 9, 9), FULL, 300)
    assert dense_norm([layer], (4, 9, 9)) < 0.4


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 3, 3)])
def test_other_layers_are_refused(layer: nn.Module) -> None:
    with pytest.raises(OutsideDomain, match="Cisse is not defined for"):
        Cisse.estimate(layer, (3, 4, 4))


# --- Beside a training ----------------------------------------------------------------------


def test_a_resumed_run_is_the_same_run() -> None:
    method = Cisse(beta=0.02)
    runs = []
    for _ in range(2):
        model = small_network()
        optimizer = sgd(model)
        runs.append((model, optimizer, attach(model, optimizer, EXAMPLE, method=method)))
        train(model, optimizer, 3)
    states = [copy.deepcopy(part.state_dict()) for part in runs[1]]
    again = small_network(seed=5)
    optimizer = sgd(again)
    runs[1] = (again, optimizer, attach(again, optimizer, EXAMPLE, method=method))
    for part, state in zip(runs[1], states, strict=True):
        part.load_state_dict(state)
    for model, optimizer, _ in runs:
        train(model, optimizer, 3, first=3)
    for first, second in zip(*runs, strict=True):
        assert_identical(first.state_dict(), second.state_dict())
    assert list(runs[0][2].layers) == ["0", "3", "6", "9"]


def test_weights_that_would_run_away_are_left_and_reported_once() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.data.mul_(100)
    attachment = attach(nn.Sequential(layer), None, torch.zeros(1, 4), method=Cisse(beta=0.1))
    before = snapshot(layer)
    with pytest.warns(NormWarning, match="Cisse on layer '0'.*scale them down"):
        attachment.step()
    attachment.step()
    assert_identical(snapshot(layer), before)
    layer.weight.data.div_(100)
    attachment.step()
    assert 0 < attachment.norms()["0"] < 3


def test_weights_that_are_not_finite_are_reported() -> None:
    layer = nn.Linear(4, 4)
    attachment = attach(nn.Sequential(layer), None, torch.zeros(1, 4), method=FULL)
    layer.weight.data[0, 0] = float("nan")
    with pytest.warns(NormWarning, match="not finite"):
        attachment.step()
    assert math.isnan(attachment.norms()["0"])


def test_one_row_that_is_not_finite_stops_it_until_it_is_restored() -> None:
    """Also in the steps that do not draw this row; and it is said once."""
    layer = nn.Linear(8, 8)
    attachment = attach(nn.Sequential(layer), None, torch.zeros(1, 8), method=Cisse())
    attachment.step()
    kept = layer.weight[0, 0].item()
    layer.weight.data[0, 0] = float("nan")
    before = snapshot(layer)
    with pytest.warns(NormWarning, match="Cisse on layer '0': weights are not finite") as said:
        for _ in range(20):
            attachment.step()
            assert math.isnan(attachment.norms()["0"])
    assert len(said) == 1
    torch.testing.assert_close(snapshot(layer), before, rtol=0, atol=0, equal_nan=True)
    layer.weight.data[0, 0] = kept
    for _ in range(30):
        attachment.step()
    norm = np.linalg.norm(rows_of(layer), 2)
    assert attachment.norms()["0"] == pytest.approx(norm, rel=0.05)


def test_the_precision_may_change_while_it_is_attached() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    model = nn.Sequential(layer)
    attachment = attach(model, None, torch.zeros(1, 2, 5, 5), method=FULL)
    attachment.step()
    model.double()
    for _ in range(100):
        attachment.step()
    assert attachment.norms()["0"] == pytest.approx(3 * np.linalg.norm(rows_of(layer), 2), rel=1e-3)


@pytest.mark.parametrize("settings", [{"beta": 0.0}, {"beta": 1.0}, {"share": 1.5}, {"share": 0}])
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Cisse(**settings)


# --- Convex sums ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", [(0.5, 0.5), (2.0, -1.0), (0.2, 0.1, 0.9, -0.3), (5.0, 5.0, 4.9), (-1.0, -2.0, -1.5)]
)
def test_the_nearest_point_of_the_simplex(point: tuple[float, ...]) -> None:
    import cvxpy  # takes a second

    x = cvxpy.Variable(len(point))
    objective = cvxpy.Minimize(cvxpy.sum_squares(x - np.array(point)))
    cvxpy.Problem(objective, [x >= 0, cvxpy.sum(x) == 1]).solve(solver=cvxpy.CLARABEL)
    ours = on_simplex(torch.tensor(point, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(ours, x.value, atol=1e-6)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch, self.sum = nn.Linear(6, 6), ConvexSum()

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(x, self.branch(x).relu())


def test_sums_stay_convex_while_the_weights_are_learned() -> None:
    model = nn.Sequential(Residual(), Residual())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    attachment = attach(model, optimizer, torch.zeros(1, 6), method=FULL)
    assert list(attachment.layers) == ["0.branch", "1.branch"]
    x = torch.randn(16, 6)
    for _ in range(20):
        optimizer.zero_grad()
        (model(x) - torch.ones(6)).square().mean().backward()
        optimizer.step()
        for block in model:
            weights = on_simplex(block.sum.weights.detach())
            assert float(weights.min()) >= 0 and float(weights.sum()) == pytest.approx(1)
    assert not torch.equal(model[0].sum.weights, torch.full((2,), 0.5))
    start, end = torch.randn(2, 50, 6)
    ratios = (model(start) - model(end)).norm(dim=1) / (start - end).norm(dim=1)
    bound = math.prod(max(1.0, dense_norm([block.branch], (6,))) for block in model)
    assert float(ratios.detach().max()) <= bound


def test_a_sum_of_other_terms_is_refused() -> None:
    with pytest.raises(ValueError, match="ConvexSum has 3 terms, got 2"):
        ConvexSum(3)(torch.ones(2), torch.ones(2))


def test_a_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="terms must be at least 1, got 0"):
        ConvexSum(0)
