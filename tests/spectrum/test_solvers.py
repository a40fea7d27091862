"""The solvers themselves: Lanczos runs that stop in time, and the power method of the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import CASES, Case, dense, dense_singular_values, params
from spectrum_cases import MEDIUM, SOLVERS, UNCONVERGED, assert_triplets, flat
from torch import nn

import spectralclip as sc
from spectralclip import Exact, Lanczos, PowerQR, svds


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "case", params([c for c in CASES if c.name in ("medium-dense", "medium-conv", "smoothing")])
)
def test_any_start_will_do(case: Case, seed: int) -> None:
    for k in (1, 3):
        generator = torch.Generator().manual_seed(seed)
        found = svds(case.make(), case.in_shape, k, solver=Lanczos(), generator=generator)
        assert_triplets(found, dense(case), k, 1e-3)


@UNCONVERGED
def test_budget_is_kept_and_its_end_is_told() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv"]
    for k in (1, 4):
        for budget in (20, 40):
            solver = Lanczos(max_matvecs=budget)
            found = svds(case.make().double(), case.in_shape, k, tol=1e-14, solver=solver)
            assert found.converged is False
            assert "Lanczos" in found.advice
            assert "tol" in found.advice
            assert "NOT converged" in repr(found)
            # The last step may be under way when the budget ends.
            assert found.num_matvecs <= budget + 4 * (k + 3)
            expected = dense_singular_values(case)[:k]
            assert torch.isfinite(found.S).all()
            assert (found.S.double().numpy() <= expected * (1 + 1e-5)).all()
            rows = flat(found.V)
            np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-4)


@pytest.mark.parametrize("case", params(MEDIUM))
def test_warm_start_is_cheaper_and_as_good(case: Case) -> None:
    for k in (1, 4):
        cold = svds(case.make(), case.in_shape, k, solver=Lanczos())
        warm = svds(case.make(), case.in_shape, k, solver=Lanczos(), v0=cold.V)
        assert warm.num_matvecs < cold.num_matvecs
        assert_triplets(warm, dense(case), k, 1e-3)


@pytest.mark.parametrize("case", params(MEDIUM))
def test_start_that_misses_the_leading_vectors(case: Case) -> None:
    _, _, right = np.linalg.svd(dense(case))
    last = torch.from_numpy(right[20:24].copy()).reshape(4, *case.in_shape)
    for k in (1, 3):
        for v0 in (last, last[0]):
            found = svds(case.make(), case.in_shape, k, solver=Lanczos(), v0=v0)
            assert_triplets(found, dense(case), k, 1e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("solver", ["auto", "lanczos", "exact"])
@pytest.mark.parametrize("case", params(MEDIUM))
def test_odd_starts(case: Case, solver: str) -> None:
    ones = torch.ones(case.in_shape)
    for v0 in (
        torch.zeros(case.in_shape),
        torch.stack([ones] * 5),
        torch.stack([ones, 2 * ones, torch.zeros_like(ones)]),
        1e-20 * ones,
        ones.double(),
        torch.randn(12, *case.in_shape, generator=torch.Generator().manual_seed(3)),
    ):
        found = svds(case.make(), case.in_shape, 3, solver=SOLVERS[solver], v0=v0)
        assert_triplets(found, dense(case), 3, 1e-3)


@UNCONVERGED
def test_start_is_not_changed() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv"]
    v0 = torch.randn(3, *case.in_shape, generator=torch.Generator().manual_seed(1))
    kept = v0.clone()
    for solver in (Lanczos(), PowerQR(iterations=3), Exact(), "auto"):
        svds(case.make(), case.in_shape, 3, solver=solver, v0=v0)
        assert torch.equal(v0, kept)


def shifted_subspace_iteration(
    matrix: np.ndarray, start: np.ndarray, iterations: int, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 on the dense matrix: QR of `(A + mu I) X`, `S = sqrt(|diag R| - mu)`."""
    gram = matrix.T @ matrix + shift * np.eye(matrix.shape[1])
    X = start
    for _ in range(iterations):
        X, R = np.linalg.qr(gram @ X)
    return np.sqrt(np.maximum(np.abs(np.diag(R)) - shift, 0)), X


@pytest.mark.parametrize("shift", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("iterations", [1, 2, 8])
@pytest.mark.parametrize(
    "case",
    params(
        [
            c
            for c in CASES
            if c.name in ("conv2d-float64", "conv2d-reflect-float64", "linear-float64")
        ]
    ),
)
@UNCONVERGED
def test_power_qr_is_the_dense_iteration(case: Case, iterations: int, shift: float) -> None:
    matrix, k = dense(case), 4
    random = np.random.default_rng(7).standard_normal((matrix.shape[1], k))
    start, _ = np.linalg.qr(random)
    expected, right = shifted_subspace_iteration(matrix, start, iterations, shift)
    found = svds(
        case.make(),
        case.in_shape,
        k,
        solver=PowerQR(iterations=iterations, shift=shift),
        v0=torch.from_numpy(start.T.copy()).reshape(k, *case.in_shape),
    )
    order = np.argsort(-expected)
    np.testing.assert_allclose(found.S.numpy(), expected[order], rtol=1e-10)
    overlap = np.abs(np.sum(flat(found.V) * right.T[order], axis=1))
    np.testing.assert_allclose(overlap, 1, rtol=1e-10)


@pytest.mark.parametrize("shift", [0.0, 1.0, 5.0])
def test_power_qr_reaches_the_values(shift: float) -> None:
    (case,) = [c for c in CASES if c.name == "separated"]
    solver = PowerQR(iterations=400, shift=shift)
    found = svds(case.make(), case.in_shape, 3, solver=solver)
    assert_triplets(found, dense(case), 3, 1e-3)


@UNCONVERGED
def test_power_qr_goes_on_from_a_warm_start() -> None:
    (case,) = [c for c in CASES if c.name == "separated"]
    layer = case.make().double()
    results = []
    for first, second in ((6, 4), (3, 7)):
        begun = svds(layer, case.in_shape, 3, solver=PowerQR(iterations=first))
        results.append(svds(layer, case.in_shape, 3, solver=PowerQR(iterations=second), v0=begun.V))
    whole = svds(layer, case.in_shape, 3, solver=PowerQR(iterations=10))
    for result in results:
        np.testing.assert_allclose(result.S.numpy(), whole.S.numpy(), rtol=1e-10)
    assert float(begun.S[0]) != pytest.approx(float(whole.S[0]), rel=1e-8)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_power_qr_finds_values_that_are_far_apart(shift: float) -> None:
    layer = nn.Linear(30, 20, bias=False).requires_grad_(False)
    U, V = (torch.linalg.qr(torch.randn(n, 20)).Q for n in (20, 30))
    values = torch.logspace(1, -1, 20)
    layer.weight.copy_(U * values @ V.T)
    found = svds(layer, (30,), 10, solver=PowerQR(iterations=100, shift=shift))
    torch.testing.assert_close(found.S, values[:10], rtol=2e-3, atol=0)
    torch.testing.assert_close(found.V @ found.V.T, torch.eye(10), rtol=0, atol=1e-4)


@UNCONVERGED
def test_power_qr_says_when_it_is_not_there_yet() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv"]
    found = svds(case.make(), case.in_shape, 4, solver=PowerQR(iterations=2))
    assert found.converged is False
    assert "PowerQR" in found.advice
    matrix, S = dense(case), found.S.double().numpy()
    U, V = flat(found.U).T, flat(found.V).T
    residuals = np.hypot(
        np.linalg.norm(matrix @ V - U * S, axis=0), np.linalg.norm(matrix.T @ U - V * S, axis=0)
    )
    np.testing.assert_allclose(found.residuals.numpy(), residuals, rtol=1e-3)
    assert residuals.max() > 1e-2 * S[0]


@pytest.mark.parametrize(
    "settings", [{"basis": -3}, {"oversampling": -1}, {"max_matvecs": 0}, {"basis": 2.5}]
)
def test_lanczos_refuses_settings_without_sense(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} of Lanczos must be an integer"):
        sc.Lanczos(**settings)
