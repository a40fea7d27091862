from __future__ import annotations

import pytest
import torch

from spectralclip._linalg import factored_inner, factored_svd


@pytest.mark.parametrize(("m", "n", "r"), [(9, 7, 3), (7, 9, 3), (4, 9, 6), (9, 4, 6), (5, 5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_decomposition_is_that_of_the_product(
    m: int, n: int, r: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(m * n)
    B, A = (torch.randn(s, generator=generator).to(dtype) for s in ((m, r), (r, n)))
    product = B.double() @ A.double()
    found = factored_svd(B, A)
    assert found.S.shape == (min(m, n, r),) and found.rank == min(m, n, r)
    expected = torch.linalg.svdvals(product)
    torch.testing.assert_close(found.S, expected[: len(found.S)], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.U * found.S @ found.Vh, product, rtol=1e-12, atol=1e-12)
    for rows in (found.U.T, found.Vh):
        identity = torch.eye(len(found.S), dtype=torch.float64)
        torch.testing.assert_close(rows @ rows.T, identity, rtol=0, atol=1e-12)


def test_the_rank_counts_what_is_more_than_rounding() -> None:
    column = torch.randn(8, 1, generator=torch.Generator().manual_seed(0))
    assert factored_svd(column.expand(8, 3), torch.eye(3, 6)).rank == 1
    assert factored_svd(torch.zeros(8, 3), torch.eye(3, 6)).rank == 0


def test_the_inner_product_is_that_of_the_products() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((8, 3), (3, 6), (8, 2), (2, 6))
    B1, A1, B2, A2 = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    assert factored_inner(B1, A1, B2, A2) == pytest.approx(float(((B1 @ A1) * (B2 @ A2)).sum()))
