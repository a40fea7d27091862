"""The largest of many eigenvalues, against torch's own decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spectralclip._linalg.small_matrices import largest_eigenvalue, norm_is_below


@pytest.mark.parametrize("side", [1, 2, 12])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_largest_of_many_eigenvalues(side: int, dtype: torch.dtype) -> None:
    factors = torch.randn(100, side, 2 * side, dtype=dtype)
    grams = factors @ factors.mH
    expected = float(torch.linalg.eigvalsh(grams).max())
    assert largest_eigenvalue(grams, 0.0) == pytest.approx(expected, rel=2e-9)
    assert largest_eigenvalue(grams, 2 * expected) == 2 * expected
    if side > 1:
        # The largest one hides from the power steps: its vector is orthogonal to their start.
        start = torch.randn(side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        hidden = torch.zeros(side, 1, dtype=dtype)
        hidden[0], hidden[1] = -start[1], start[0]
        hidden = 1.001 * expected * (hidden @ hidden.mH) / hidden.norm() ** 2
        found = largest_eigenvalue(torch.cat([grams, hidden[None]]), 0.0)
        assert found == pytest.approx(1.001 * expected, rel=2e-9)


def test_a_factor_proves_only_what_is_so() -> None:
    for shape in [(700, 600), (500, 1100)]:
        matrix = torch.randn(shape)
        norm = float(np.linalg.norm(matrix.double().numpy(), 2))
        assert norm_is_below(matrix, norm * (1 + 1e-6))
        assert not norm_is_below(matrix, norm * (1 - 1e-6))
    assert norm_is_below(1e30 * matrix, 1.001e30 * norm)
