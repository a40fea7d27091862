"""The quadratic program of clipping, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from spectralclip._linalg.qp import nonnegative_qp


@pytest.mark.parametrize("seed", range(10))
def test_quadratic_program_against_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    factor = generator.standard_normal((12, 9))
    factor[:, 3] = factor[:, 2]  # two cuts that are the same
    wished = generator.standard_normal(12)
    expected, _ = scipy.optimize.nnls(factor, wished)
    found = nonnegative_qp(torch.tensor(factor.T @ factor), torch.tensor(factor.T @ wished))
    assert float(found.min()) >= 0
    np.testing.assert_allclose(factor @ found.numpy(), factor @ expected, atol=1e-5)
