"""Sums over rows of millions of entries."""

from __future__ import annotations

import torch

from spectralclip._spectrum.subspace import lengths, row_products


def test_sums_over_long_rows_are_accurate() -> None:
    """Torch's norm of sixteen million numbers in float32 is 6e-4 too small: Ritz values rise."""
    rows = torch.randn(2, 2**22)
    wide = rows.double()
    torch.testing.assert_close(lengths(rows).double(), wide.norm(dim=1), rtol=1e-6, atol=0)
    exact = wide @ wide.T
    assert float((row_products(rows, rows) - exact).abs().max()) <= 5e-6 * float(exact.max())
