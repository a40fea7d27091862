"""Lanczos recurrences and the algebra on long rows: orthonormal, and accurate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spectralclip._linalg.krylov import LanczosRun, lengths, row_products, rows_lq


def test_the_basis_stays_orthonormal() -> None:
    """A leading value that converges fast would otherwise come back as a copy of itself."""
    gram = torch.diag(torch.cat([torch.tensor([9.0]), torch.linspace(0.01, 1, 149)]))
    run = LanczosRun(lambda rows: rows @ gram, torch.randn(1, 150))
    assert all(run.step() for _ in range(60))
    basis = run.rows(torch.eye(60))
    assert float((basis @ basis.T - torch.eye(60)).abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e3, 1e6, np.inf])
def test_rows_are_factored_however_close_to_dependent(
    condition: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    left = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(40, 6, dtype=torch.float64, generator=generator)).Q
    values = torch.logspace(0, -np.log10(min(condition, 1e6)), 6, dtype=torch.float64)
    values[-1] = 0.0 if condition == np.inf else values[-1]
    rows = (left * values @ right.T).to(dtype)
    L, Q = rows_lq(rows)
    identity = torch.eye(6, dtype=dtype)
    torch.testing.assert_close(Q @ Q.T, identity, rtol=0, atol=2e-4)
    torch.testing.assert_close(L @ Q, rows, rtol=0, atol=100 * torch.finfo(dtype).eps)
    assert torch.equal(L, L.tril())
    expected = np.abs(np.linalg.qr(rows.double().numpy().T, mode="r").diagonal())
    np.testing.assert_allclose(L.diagonal().abs().numpy(), expected, atol=1e-5)


def test_sums_over_long_rows_are_accurate() -> None:
    """Torch's norm of sixteen million numbers in float32 is 6e-4 too small: Ritz values rise."""
    rows = torch.randn(2, 2**22)
    wide = rows.double()
    torch.testing.assert_close(lengths(rows).double(), wide.norm(dim=1), rtol=1e-6, atol=0)
    exact = wide @ wide.T
    assert float((row_products(rows, rows) - exact).abs().max()) <= 5e-6 * float(exact.max())
