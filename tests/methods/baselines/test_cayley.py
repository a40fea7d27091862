"""Cayley transforms, against the dense matrix and the package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from orthogonal_cases import PackageCayley, attached, circular, needs_package
from torch import nn

from oracle import dense_matrix
from spectralclip import attach
from spectralclip.methods.baselines.cayley import Cayley


@needs_package
def test_cayley_is_the_cayley_transform() -> None:
    conv = circular()
    matrix = dense_matrix(conv, (3, 5, 5))
    skew, identity = matrix - matrix.T, np.eye(len(matrix))
    model, _ = attached(Cayley(), conv, (3, 5, 5))
    expected = (identity - skew) @ np.linalg.inv(identity + skew)
    np.testing.assert_allclose(dense_matrix(model, (3, 5, 5)), expected, atol=1e-12)


@needs_package
def test_cayley_of_the_package() -> None:
    theirs = PackageCayley(3, 5, 3).double()
    conv = nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular").double()
    with torch.no_grad():
        for ours, other in ((conv.weight, theirs.weight), (conv.bias, theirs.bias)):
            ours.copy_(other)
        # Theirs divides by the norm of the symbols, and multiplies with a scale to be learned.
        theirs.alpha.fill_(float(torch.fft.rfft2(conv.weight, (6, 6)).norm()))
    model, _ = attached(Cayley(), conv, (3, 6, 6))
    x = torch.randn(2, 3, 6, 6).double()
    torch.testing.assert_close(model(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_cayley_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("spectralclip.methods.baselines.cayley.import_module", nothing)
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ImportError, match=r'pip install "spectralclip\[orthogonal\]"'):
        attach(model, None, torch.zeros(1, 3), method=Cayley())
    assert "forward" not in vars(model[0])
