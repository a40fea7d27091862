"""Spectra as they are handed out: unpacked, made from vectors, printed."""

from __future__ import annotations

import torch
from cases import linear_with_values
from torch import nn

import spectralclip as sc
from spectralclip import svds


def test_a_spectrum_unpacks_as_u_s_v() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    found = svds(layer, (2, 6, 6), 3)
    U, S, V = found
    assert U is found.U and S is found.S and V is found.V
    images = sc.as_operator(layer, (2, 6, 6)).matvec(V)
    torch.testing.assert_close(images, S[:, None, None, None] * U, rtol=0, atol=1e-3)


def test_a_spectrum_from_right_vectors() -> None:
    layer = linear_with_values([3.0, 2.0, 1.0, 0.5], 5, 4).double()
    op = sc.as_operator(layer, (4,))
    true = svds(layer, (4,), 2)
    mixed = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double() @ true.V  # neither unit nor orthogonal
    found = sc.Spectrum.from_right_vectors(op, mixed, tol=1e-6, num_matvecs=7)
    assert found.converged and found.num_matvecs == 7 + 4
    torch.testing.assert_close(found.S, torch.tensor([3.0, 2.0]).double())
    rough = sc.Spectrum.from_right_vectors(op, torch.eye(4).double()[:2], tol=1e-6)
    assert not rough.converged and "tol=1e-06" in rough.advice
    assert bool((rough.S <= true.S).all())


def test_converged_result_is_short_in_print() -> None:
    found = svds(nn.Linear(9, 8), (9,), 8)
    assert "converged" in repr(found)
    assert "NOT" not in repr(found)
    assert repr(found).count(",") <= 8
