"""Runs end when their values are accurate, and not before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import CASES, Case, dense_singular_values, params
from spectrum_cases import assert_values
from torch import nn

from oracle import singular_values
from spectralclip import Lanczos, svds


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize(
    "case", params([c for c in CASES if c.name in ("medium-dense", "medium-conv", "smoothing")])
)
def test_tolerance_is_kept(case: Case, tol: float) -> None:
    layer = case.make()
    found = [svds(layer.double(), case.in_shape, k, tol=tol, solver=Lanczos()) for k in (1, 6)]
    for spectrum, k in zip(found, (1, 6), strict=True):
        assert spectrum.converged
        assert_values(spectrum.S, dense_singular_values(case)[:k], tol)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", [1, 3])
def test_convergence_is_not_claimed_too_soon(k: int) -> None:
    """Values that lie close together hide behind one another for the first few iterations."""
    wrong = []
    for seed in range(60):
        torch.manual_seed(seed)
        layer = nn.Conv2d(4, 4, 3, padding=1)
        found = svds(layer, (4, 8, 8), k, solver=Lanczos())
        expected = singular_values(layer.double(), (4, 8, 8))[:k]
        error = np.abs(found.S.double().numpy() / expected - 1).max()
        if found.converged and error > 1e-3:
            wrong.append((seed, float(error)))
    assert not wrong
