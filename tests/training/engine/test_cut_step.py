"""Projections onto cuts agree with a solver we did not write, and momenta lose what they must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import Tensor

from spectralclip._linalg.qp import solve_nonnegative
from spectralclip._training.engine.cut_step import (
    Cuts,
    DenseCuts,
    FactorCuts,
    project_,
    project_momentum_,
)
from spectralclip._training.momentum import Momentum

KINDS = ["dense", "factors", "groups"]


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def make_cuts(kind: str, seed: int, count: int = 5) -> tuple[Cuts, Tensor, Tensor]:
    """Cuts, the same as rows made by other means, and a weight."""
    generator = torch.Generator().manual_seed(seed)
    groups = 3 if kind == "groups" else 1
    weight = draw(generator, groups, 4, 6)
    if kind == "dense":
        rows = draw(generator, count, weight.numel())
        return DenseCuts(rows), rows, weight
    kernel = torch.arange(count) % groups
    left, right = draw(generator, count, 2, 4), draw(generator, count, 2, 6)
    rows = torch.zeros(count, groups, 4, 6, dtype=torch.float64)
    for i in range(count):
        rows[i, kernel[i]] = sum(torch.outer(left[i, j], right[i, j]) for j in range(2))
    return FactorCuts(kernel, groups, left, right), rows.flatten(1), weight


def nearest(rows: np.ndarray[Any, Any], excess: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The shortest x with `rows @ x <= -excess`: a least distance program as one of nnls.

    Lawson and Hanson's own reduction, by the residual of `[-G^T; -excess^T] u ~ e_last`.
    """
    system = np.vstack((-rows.T, excess[None]))
    target = np.zeros(len(system))
    target[-1] = 1
    solution, _ = nnls(system, target)
    residual = system @ solution - target
    return np.asarray(-residual[:-1] / residual[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_are_what_their_rows_are(kind: str) -> None:
    cuts, rows, weight = make_cuts(kind, 1)
    torch.testing.assert_close(cuts.rows(), rows)
    torch.testing.assert_close(cuts.gram(), rows @ rows.T)
    torch.testing.assert_close(cuts.products(weight), rows @ weight.flatten())
    weights, moved = torch.linspace(-1, 2, 5, dtype=torch.float64), weight.clone()
    cuts.add_(moved, weights)
    torch.testing.assert_close(moved.flatten(), weight.flatten() + weights @ rows)
    some = torch.tensor([3, 1])
    torch.testing.assert_close(cuts.chosen(some).rows(), rows[some])
    torch.testing.assert_close(cuts.chosen(some).gram(), rows[some] @ rows[some].T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuts_reach_tensors_of_other_precision_and_layout(kind: str, dtype: torch.dtype) -> None:
    cuts, rows, weight = make_cuts(kind, 2)
    weights = torch.ones(5, dtype=torch.float64)
    moved = weight.transpose(0, 2).contiguous().transpose(0, 2).to(dtype)
    cuts.add_(moved, weights)
    expected = weight.flatten() + rows.sum(0)
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        moved.double().flatten(), expected, rtol=tolerance, atol=10 * tolerance
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_the_projection_is_that_of_an_independent_solver(kind: str, seed: int) -> None:
    cuts, rows, weight = make_cuts(kind, seed)
    rng = np.random.default_rng(seed)
    excess = rng.standard_normal(5)
    excess[seed % 5] = 0.3
    moved = weight.clone()
    active = project_(moved, cuts, excess)
    expected = nearest(rows.numpy(), excess)
    np.testing.assert_allclose((moved - weight).flatten().numpy(), expected, atol=1e-7)
    assert active is not None
    # Those that are active hold exactly; all hold.
    after = excess + rows.numpy() @ (moved - weight).flatten().numpy()
    assert (after <= 1e-8).all()
    tight = [i for i in range(5) if abs(after[i]) < 1e-8]
    torch.testing.assert_close(active.rows(), rows[tight])


def test_the_projection_is_that_of_sequential_quadratic_programming() -> None:
    cuts, rows, weight = make_cuts("factors", 7)
    excess = np.array([0.5, -0.2, 0.8, 0.1, -3.0])
    matrix = rows.numpy()
    found = minimize(
        lambda x: 0.5 * x @ x,
        np.zeros(weight.numel()),
        jac=lambda x: x,
        constraints={
            "type": "ineq",
            "fun": lambda x: -(matrix @ x + excess),
            "jac": lambda x: -matrix,
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 200},
    )
    moved = weight.clone()
    project_(moved, cuts, excess)
    np.testing.assert_allclose((moved - weight).flatten().numpy(), found.x, atol=1e-5)


def test_dense_cuts_and_factors_project_alike() -> None:
    cuts, rows, weight = make_cuts("groups", 8)
    excess = np.array([0.4, 0.6, -0.1, 0.2, 0.3])
    one, other = weight.clone(), weight.clone()
    project_(one, cuts, excess)
    project_(other, DenseCuts(rows), excess)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_moves_where_nothing_is_above(kind: str) -> None:
    cuts, _, weight = make_cuts(kind, 9)
    moved = weight.clone()
    assert project_(moved, cuts, np.full(5, -0.1)) is None
    assert torch.equal(moved, weight)


def test_equal_and_empty_cuts_do_no_harm() -> None:
    _, rows, weight = make_cuts("dense", 10)
    same = DenseCuts(torch.stack((rows[0], rows[0], torch.zeros_like(rows[0]))))
    moved = weight.clone()
    project_(moved, same, np.array([1.0, 1.0, -1.0]))
    change = (moved - weight).flatten()
    torch.testing.assert_close(change, -rows[0] / rows[0].square().sum(), rtol=1e-6, atol=1e-8)


def test_a_large_multiplier_that_is_right_from_the_start_raises_no_warning() -> None:
    """Warnings are errors here: a step length that is not needed must not overflow."""
    gram = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.9], [0.0, 0.9, 1.0]])
    wished = np.array([1e9, 1.0, -1.0])
    start = np.array([1e9 / (1 + 1e-12), 1.0, 1.0])
    found = solve_nonnegative(gram, wished, start)
    np.testing.assert_allclose(found, [1e9, 1.0, 0.0], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_stripped_momentum_pushes_outward_along_no_cut(kind: str, adam: bool, seed: int) -> None:
    cuts, rows, weight = make_cuts(kind, seed)
    buffer = weight - 0.2 * rows.sum(0).reshape(weight.shape)
    generator = torch.Generator().manual_seed(seed)
    metric = draw(generator, *weight.shape).exp() if adam else None
    before = buffer if metric is None else buffer * metric
    assert (rows @ before.flatten()).min() < 0, "nothing to strip"
    project_momentum_(Momentum(buffer, metric), cuts)
    after = buffer if metric is None else buffer * metric
    # The weight moves by -step: a step with <g, step> >= 0 lets no value grow.
    assert (rows @ after.flatten()).min() > -1e-7
    # And it is the nearest such step.
    change = nearest(-rows.numpy(), -(rows @ before.flatten()).numpy())
    np.testing.assert_allclose((after - before).flatten().numpy(), change, atol=1e-6)
    assert after.norm() <= before.norm() * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adam", [False, True])
def test_a_momentum_that_pushes_inward_stays_bit_for_bit(kind: str, adam: bool) -> None:
    cuts, rows, weight = make_cuts(kind, 11)
    buffer = torch.linalg.lstsq(rows, torch.ones(5, dtype=torch.float64)).solution
    buffer = buffer.reshape(weight.shape)
    metric = torch.full_like(buffer, 3.0) if adam else None
    before = buffer.clone()
    project_momentum_(Momentum(buffer, metric), cuts)
    assert torch.equal(buffer, before)


def test_entries_that_hardly_had_gradients_do_not_lengthen_the_step() -> None:
    cuts, rows, weight = make_cuts("factors", 12)
    squares = torch.ones_like(weight)
    squares[0, 0] = 1e-16
    metric = (squares.sqrt() + 1e-8).reciprocal()
    buffer = weight.clone() * squares.sqrt()
    before = buffer * metric
    assert (rows @ before.flatten()).min() < 0
    project_momentum_(Momentum(buffer, metric), cuts)
    after = buffer * metric
    assert after.norm() <= before.norm() * (1 + 1e-9)
    assert (rows @ after.flatten()).min() > -1e-7
