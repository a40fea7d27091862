"""Values far below the largest, weights at the ends of the range, and what a result claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from cases import with_weight
from spectrum_cases import UNCONVERGED, assert_honest
from torch import Tensor, nn

import spectralclip as sc
from spectralclip import Exact, Lanczos, PowerQR, svds
from spectralclip.methods import virmaux_svds


def orthonormal(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((rows, columns)))[0]


def factored(
    values: np.ndarray, m: int, n: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Callable[[Tensor], Tensor], np.ndarray]:
    """`x -> A diag(values) B^T x`, and the singular values of the product as it is stored."""
    left, right = (orthonormal(size, len(values), 2 * seed + i) for i, size in enumerate((m, n)))
    A, B, s = (torch.tensor(part.copy(), dtype=dtype) for part in (left, right, values))
    # What is left of the factors once their orthonormal parts are split off has the same values.
    outer, inner = (np.linalg.qr(part.double().numpy(), mode="r") for part in (A, B))
    expected = np.zeros(min(m, n))
    expected[: len(values)] = np.linalg.svd(
        (outer * s.double().numpy()) @ inner.T, compute_uv=False
    )

    def apply(x: Tensor) -> Tensor:
        return ((x @ B) * s) @ A.T

    return apply, expected


# --- Values that squaring loses -----------------------------------------------------------


def test_values_that_fall_fast_in_single_precision() -> None:
    layer, expected = factored(4.0 ** -np.arange(12), 3000, 3000, torch.float32)
    for k in (8, 10):
        found = svds(layer, (3000,), k)
        assert found.converged or k == 10
        np.testing.assert_allclose(found.S.double().numpy(), expected[:k], rtol=1e-3)
        np.testing.assert_allclose(found.S[:8].double().numpy(), expected[:8], rtol=5e-6)
        assert_honest(found, expected[:k], 1e-3)
        assert found.num_matvecs < 250


@UNCONVERGED
def test_hilbert_in_double_precision() -> None:
    matrix = scipy.linalg.hilbert(40)
    layer = with_weight(nn.Linear(40, 40, bias=False).double(), torch.tensor(matrix))
    expected = np.linalg.svd(matrix, compute_uv=False)
    for solver in (Lanczos(), Exact()):
        found = svds(layer, 40, 10, solver=solver)
        assert found.converged
        np.testing.assert_allclose(found.S.numpy(), expected[:10], rtol=1e-5)
    for k in (16, 30):
        assert_honest(svds(layer, 40, k, solver=Lanczos()), expected[:k], 1e-3)


def test_vectors_of_small_values_are_right_on_both_sides() -> None:
    layer, expected = factored(4.0 ** -np.arange(12), 300, 200, torch.float32, seed=3)
    op = sc.as_operator(layer, 200)
    matrix = op.to_dense().double().numpy()
    found = svds(op, 200, 7, solver=Lanczos())
    S, U, V = (part.double().numpy() for part in (found.S, found.U, found.V))
    np.testing.assert_allclose(matrix @ V.T, U.T * S, atol=1e-6)
    np.testing.assert_allclose(matrix.T @ U.T, V.T * S, atol=5e-3 * expected[4])
    for rows in (U, V):
        np.testing.assert_allclose(rows @ rows.T, np.eye(7), atol=1e-5)
    warm = svds(op, 200, 7, solver=Lanczos(), v0=found.V)
    assert warm.converged
    np.testing.assert_allclose(warm.S.double().numpy(), expected[:7], rtol=1e-4)


@UNCONVERGED
def test_what_rounding_hides_is_not_called_converged() -> None:
    """A value of 1e-6 in float32 to nine digits; with the remedy that the advice names."""
    values = np.concatenate([np.ones(3), 1e-6 * np.arange(40, 0, -1) / 40])
    layer, expected = factored(values, 120, 110, torch.float32, seed=1)
    found = svds(layer, 110, 8, solver=Lanczos())
    assert_honest(found, expected[:8], 1e-3)
    dense = with_weight(nn.Linear(110, 120, bias=False), sc.as_operator(layer, 110).to_dense())
    single = svds(dense, 110, 8, tol=1e-5, solver=Lanczos())
    assert not single.converged
    assert "float64" in single.advice
    exact = np.linalg.svd(dense.weight.detach().double().numpy(), compute_uv=False)[:8]
    assert_honest(single, exact, 1e-5)
    double = svds(dense.double(), 110, 8, tol=1e-5, solver=Lanczos())
    assert double.converged
    np.testing.assert_allclose(double.S.numpy(), exact, rtol=1e-5)


SPECTRA: dict[str, np.ndarray] = {
    "geometric-1.2": 1.2 ** -np.arange(33.0),
    "geometric-2": 2.0 ** -np.arange(33.0),
    "geometric-4": 4.0 ** -np.arange(33.0),
    "geometric-10": 10.0 ** -np.arange(33.0),
    "squares": (1 + np.arange(33.0)) ** -2,
    "clusters": np.repeat([1, 0.99, 1e-2, 0.999e-2, 1e-4, 1e-6, 1e-8], 5)[:33],
    "plateaus": np.repeat([1.0, 1e-3, 1e-6], [3, 10, 20]),
    "deficient": np.concatenate([[1, 0.5, 0.2, 1e-2, 1e-3], np.zeros(28)]),
    "equal": np.ones(33),
    "zero": np.zeros(33),
}
SOLVERS: dict[str, Any] = {
    "auto": "auto",
    "lanczos": Lanczos(),
    "exact": Exact(),
    "power-qr": PowerQR(iterations=40),
}


def sweep(
    name: str,
    dtype: torch.dtype,
    solver: str,
    m: int,
    n: int,
    seed: int,
    requests: tuple[tuple[int, float], ...],
) -> int:
    """How many results were judged: all of them, but those that the power method itself doubts."""
    judged = 0
    layer, of_product = factored(SPECTRA[name], m, n, dtype, seed)
    dense = nn.Linear(n, m, bias=False, dtype=dtype)
    with_weight(dense, sc.as_operator(layer, n, dtype=dtype).to_dense())
    of_matrix = np.linalg.svd(dense.weight.detach().double().numpy(), compute_uv=False)
    for one, expected in ((layer, of_product), (dense, of_matrix)):
        op = sc.as_operator(one, n, dtype=dtype)
        for k, tol in requests:
            found = svds(op, n, k, tol=tol, solver=SOLVERS[solver])
            if solver != "power-qr" or found.converged:
                assert_honest(found, expected[:k], tol)
                judged += 1
    return judged


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["geometric-4", "clusters", "deficient", "zero"])
@UNCONVERGED
def test_claims_hold(name: str, solver: str) -> None:
    judged = sweep(name, torch.float32, solver, 120, 90, 0, ((8, 1e-3),))
    assert judged == 2 or (solver == "power-qr" and judged < 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(120, 90), (90, 120), (400, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", SPECTRA)
@UNCONVERGED
def test_claims_hold_for_every_spectrum(
    name: str, solver: str, dtype: torch.dtype, shape: tuple[int, int], seed: int
) -> None:
    requests = tuple((k, tol) for k in (1, 8, 25) for tol in (1e-3, 1e-6))
    judged = sweep(name, dtype, solver, *shape, seed, requests)
    assert judged == 12 or (solver == "power-qr" and judged < 12)


def test_half_precision_is_as_honest() -> None:
    layer = nn.Linear(90, 120, bias=False).bfloat16()
    left, right = orthonormal(120, 33, 0), orthonormal(90, 33, 1)
    with_weight(layer, torch.tensor(left * SPECTRA["geometric-2"] @ right.T).bfloat16())
    expected = np.linalg.svd(layer.weight.detach().double().numpy(), compute_uv=False)
    for solver in ("auto", "lanczos", "exact"):
        for k in (1, 8, 40):
            assert_honest(svds(layer, 90, k, solver=SOLVERS[solver]), expected[:k], 1e-3)


@UNCONVERGED
def test_deflation_does_not_claim_what_its_residuals_deny() -> None:
    layer, expected = factored(4.0 ** -np.arange(12), 60, 50, torch.float32)
    found = virmaux_svds(layer, (50,), 10)
    off = np.abs(found.S.double().numpy() - expected[:10]) / expected[:10]
    assert not found.converged or off.max() < 1e-2


# --- Lower bounds -------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("k", [1, 4])
@UNCONVERGED
def test_the_norm_is_a_lower_bound_in_single_precision(solver: str, k: int) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        for layer, shape in (
            (nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular"), (6, 6, 6)),
            (nn.Conv2d(6, 6, 3, padding=1), (6, 6, 6)),
            (nn.Linear(150, 100), (150,)),
            (nn.Conv2d(16, 16, 1), (16, 3, 3)),
        ):
            matrix = sc.as_operator(layer, shape, dtype=torch.float64).to_dense().numpy()
            found = svds(layer, shape, k, tol=1e-5, solver=SOLVERS[solver])
            assert float(found.S[0]) <= np.linalg.norm(matrix, 2)


def test_the_norm_is_below_the_deterministic_upper_end() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular")
    shape = (32, 16, 16)
    upper = sc.norm_bounds(layer, shape, deterministic=True).upper
    for k in (1, 4):
        for solver in (Lanczos(), Exact()):
            assert float(svds(layer, shape, k, tol=1e-6, solver=solver).S[0]) <= upper


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("iterations", [1, 2, 5])
@UNCONVERGED
def test_power_qr_stays_below_the_norm(iterations: int, shift: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(200, 150)
    norm = np.linalg.norm(layer.weight.detach().double().numpy(), 2)
    starts = (None, torch.randn(4, 200), 1e3 * torch.ones(1, 200))
    for v0 in starts:
        solver = PowerQR(iterations=iterations, shift=shift)
        assert float(svds(layer, 200, 4, solver=solver, v0=v0).S[0]) <= norm


# --- Weights at the ends of the range -----------------------------------------------------


class Wrapped(nn.Module):
    """A layer behind a forward of its own, so that it is applied through autograd."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("factor", [1e-38, 1e-30, 1e-25, 1e25, 1e30])
@UNCONVERGED
def test_extreme_weights_behind_a_forward(factor: float, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(50, 40, bias=bias and factor > 1e-35)
    with_weight(layer, factor * layer.weight.detach())
    expected = np.linalg.svd(layer.weight.detach().double().numpy(), compute_uv=False)[:3]
    for one in (Wrapped(layer), layer):
        for solver in ("auto", "lanczos", "exact"):
            found = svds(one, 50, 3, solver=SOLVERS[solver])
            assert found.converged
            np.testing.assert_allclose(found.S.double().numpy(), expected, rtol=1e-4)
        paper = svds(one, 50, 3, solver=PowerQR())
        # With its fixed shift it stalls on small weights, and says so.
        assert paper.converged == (factor > 1)
        assert torch.isfinite(paper.S).all()
        assert float(paper.S[0].double()) <= expected[0]


def test_a_cut_backward_pass_is_refused_at_any_scale() -> None:
    for factor in (1e-30, 1.0, 1e30):

        def cut(x: Tensor, factor: float = factor) -> Tensor:
            return factor * x.detach().flip(-1) + factor * x

        with pytest.raises(ValueError, match="not the transpose"):
            sc.as_operator(cut, 6)
