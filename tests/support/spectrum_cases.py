"""What tests of spectra share: solvers, and what a `Spectrum` promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES
from torch import Tensor

from spectralclip import Exact, Lanczos, Spectrum

# These tests ask for more than the solver can give.
UNCONVERGED = pytest.mark.filterwarnings("ignore::spectralclip.ConvergenceWarning")


SOLVERS: dict[str, Any] = {"auto": "auto", "lanczos": Lanczos(), "exact": Exact()}


def flat(vectors: Tensor) -> np.ndarray:
    return vectors.double().reshape(vectors.shape[0], -1).numpy()


def assert_values(got: Tensor, expected: np.ndarray, tol: float) -> None:
    """Each value to the tolerance; those far below the largest, to that of the largest."""
    scale = expected[0] if len(expected) else 0.0
    allowed = tol * np.where(expected > 0.1 * scale, expected, scale) + 1e-30
    np.testing.assert_array_less(np.abs(got.double().numpy() - expected), allowed + 1e-30)


def assert_triplets(found: Spectrum, matrix: np.ndarray, k: int, tol: float) -> None:
    """All that a `Spectrum` promises, with nothing taken from the library's own numbers."""
    largest = float(np.linalg.norm(matrix, 2))
    expected = np.linalg.svd(matrix, compute_uv=False)[:k]
    rounding = 1e-12 if found.S.dtype == torch.float64 else 1e-5
    assert found.converged is True
    assert found.advice == ""
    assert found.S.shape == found.residuals.shape == (k,)
    assert (found.S[1:] <= found.S[:-1]).all()
    assert (found.S >= 0).all()
    S, U, V = found.S.double().numpy(), flat(found.U), flat(found.V)
    assert_values(found.S, expected, tol)
    # Ritz values never exceed the singular values that they stand for.
    assert (expected + rounding * largest >= S).all()
    np.testing.assert_allclose(U @ U.T, np.eye(k), atol=10 * rounding)
    np.testing.assert_allclose(V @ V.T, np.eye(k), atol=10 * rounding)
    forward = np.linalg.norm(matrix @ V.T - U.T * S, axis=0)
    backward = np.linalg.norm(matrix.T @ U.T - V.T * S, axis=0)
    reported = found.residuals.double().numpy()
    np.testing.assert_allclose(
        reported, np.hypot(forward, backward), rtol=0.05, atol=10 * rounding * largest
    )
    # One side holds by construction.
    assert (np.minimum(forward, backward) <= 5 * rounding * largest).all()


MEDIUM = [c for c in CASES if c.name in ("medium-conv", "medium-dense", "medium-conv-bn")]


def assert_honest(found: Spectrum, expected: np.ndarray, tol: float) -> None:
    """Each value is within what it claims, and one that has converged within the tolerance."""
    S, errors = found.S.double().numpy(), found.errors.double().numpy()
    off = np.abs(S - expected)
    np.testing.assert_array_less(off, errors + 1e-300)
    # The largest is a lower bound, but for what NumPy's own rounding leaves open.
    assert S[0] <= expected[0] * (1 + 1e-15)
    if found.converged:
        eps = torch.finfo(found.S.dtype).eps
        zero = (errors >= S) & (errors <= 20.001 * eps * S[0])
        assert (off[~zero] <= 1.5 * max(tol, 20 * eps) * expected[~zero]).all()
        assert found.advice == ""
    else:
        assert found.advice
