"""The small problems of the clipping step, against LAPACK and an independent solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from spectralclip._training.engine.small import (
    as_complex,
    leading,
    multipliers,
    quarter_turns,
    surplus,
)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def planes(vectors: Tensor) -> Tensor:
    """Complex rows as two real ones each."""
    return torch.stack((vectors.real, vectors.imag), -2).flatten(-3, -2)


def as_vectors(rows: Tensor) -> Tensor:
    return torch.complex(rows[..., ::2, :], rows[..., 1::2, :])


def test_products_of_planes_hold_those_of_complex_vectors() -> None:
    a, b = (drawn(5, 3, 7, seed=seed, dtype=torch.complex64) for seed in (0, 1))
    found = as_complex(planes(a) @ planes(b).mT, quarter_turns(3, torch.zeros(())))
    expected = a.conj() @ b.mT
    torch.testing.assert_close(found[:, ::2, ::2], expected.real)
    torch.testing.assert_close(found[:, ::2, 1::2], expected.imag)
    torch.testing.assert_close(found[:, 1::2, 1::2], expected.real)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("size", [1.0, 1e-3, 30.0])
def test_the_leading_vectors_of_a_space_are_found(k: int, size: float) -> None:
    """From the leading vectors as they were before the map changed a little, as in training."""
    N, n = 40, 12
    maps = drawn(N, n, n, dtype=torch.complex64) * size
    # Values that are apart, so that one step separates them.
    U, _, Vh = torch.linalg.svd(maps)
    maps = U @ torch.diag_embed(size * 0.7 ** torch.arange(n).float() + 0j) @ Vh
    known = torch.linalg.qr(
        (Vh.mH + 0.05 * drawn(N, n, n, seed=2, dtype=torch.complex64))[..., :k]
    )[0]
    back = maps.mH @ (maps @ known)
    fresh = back - known @ (known.mH @ back)
    basis = torch.cat((known, fresh), 2).mT.contiguous()
    images = (maps @ basis.mT).mT.contiguous()
    turns = quarter_turns(2 * k, torch.zeros(()))
    rows, seen = planes(basis), planes(images)
    grams = torch.stack((rows @ rows.mT, seen @ seen.mT))
    mix, values = leading(grams, turns, torch.eye(4 * k))
    found = as_vectors(mix @ rows)
    space = torch.linalg.qr(basis.mT.to(torch.complex128))[0]
    expected = torch.linalg.svdvals(maps.to(torch.complex128) @ space)[:, :k]
    # Never above what there is, and the first nearly all of it.
    assert (values <= expected[:, :1] * (1 + 1e-3)).all()
    torch.testing.assert_close(values[:, 0], expected[:, 0].float(), rtol=2e-3, atol=0)
    torch.testing.assert_close(found.norm(dim=2), torch.ones(N, k), rtol=0, atol=1e-3)
    lengths = (maps @ found.mT).norm(dim=1)
    torch.testing.assert_close(lengths, values, rtol=1e-2, atol=1e-6 * size)


def test_a_map_of_zeros_leaves_the_vectors_and_spoils_no_other() -> None:
    rows = planes(torch.linalg.qr(drawn(3, 8, 4, dtype=torch.complex64))[0].mT.contiguous())
    images = planes(drawn(3, 4, 6, seed=1, dtype=torch.complex64))
    images[1] = 0
    grams = torch.stack((rows @ rows.mT, images @ images.mT))
    mix, values = leading(grams, quarter_turns(4, rows), torch.eye(8))
    assert torch.isfinite(mix).all() and torch.isfinite(values).all()
    torch.testing.assert_close(values[1], torch.zeros(2))
    torch.testing.assert_close(mix[1], torch.eye(4, 8))
    assert (values[[0, 2]] > 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_cuts_go_as_far_as_an_independent_solver_says(seed: int) -> None:
    """With Q = L L' it is |L' y - L^-1 b| that is minimized over y >= 0."""
    A = drawn(6, 40, seed=seed, dtype=torch.float64)
    A[5] = A[4] + 1e-2 * A[5]  # two that are nearly the same
    b = drawn(6, seed=seed + 50, dtype=torch.float64).abs() * 0.1
    b[0] = -1.0
    found = multipliers((A @ A.mT)[None], b[None], torch.eye(6).double(), 4000)[0]
    L = np.linalg.cholesky((A @ A.mT).numpy())
    y, _ = nnls(L.T, np.linalg.solve(L, b.numpy()))
    change, expected = found @ A, torch.from_numpy(y) @ A
    torch.testing.assert_close(change, expected, rtol=0, atol=2e-3 * float(expected.norm()))
    assert (found >= 0).all()


def test_nothing_moves_where_nothing_is_above() -> None:
    Q = drawn(4, 5, 9)
    assert not multipliers(Q @ Q.mT, -torch.rand(4, 5) - 1e-6, torch.eye(5), 12).any()


def test_cuts_that_are_the_same_share_the_way() -> None:
    found = multipliers(torch.ones(1, 3, 3), torch.full((1, 3), 0.3), torch.eye(3), 12)
    assert found.sum() == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize("top", [1.002, 1.05, 1.3, 1.5])
def test_the_surplus_is_that_of_the_eigenvalues(top: float) -> None:
    values = torch.tensor([top, top, 1.01, 0.995, 0.9, *[0.5] * 5, *[0.0] * 6]).double()
    Q = torch.linalg.qr(drawn(3, 16, 16, dtype=torch.float64))[0]
    found = surplus(((Q * values.square()) @ Q.mT).float(), torch.eye(16))
    expected = (Q * torch.where(values > 1, 1 - 1 / values, 0)) @ Q.mT
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=3e-3)


def test_there_is_no_surplus_below_one() -> None:
    Q = torch.linalg.qr(drawn(3, 16, 16))[0]
    assert not surplus((Q * torch.linspace(0, 1, 16)) @ Q.mT, torch.eye(16)).any()
