"""The symbols of a convolution on a torus have its whole spectrum."""

from __future__ import annotations

import numpy as np
from torus_cases import random_conv

from oracle import singular_values
from spectralclip.methods.baselines._circulant import Torus


def test_the_symbols_have_the_whole_spectrum() -> None:
    conv = random_conv(3, 5, 3, stride=2).double()
    symbols = Torus((6, 8), (2, 2)).symbols(conv.weight.detach())
    assert symbols.shape == (3, 3, 5, 12)  # of four columns of frequencies, one is a conjugate
    values = np.linalg.svd(symbols.numpy(), compute_uv=False)
    both = np.concatenate([values, values[:, 1:2]], axis=1)
    truth = singular_values(conv, (3, 6, 8))
    np.testing.assert_allclose(np.sort(both.ravel()), np.sort(truth), rtol=1e-10)
