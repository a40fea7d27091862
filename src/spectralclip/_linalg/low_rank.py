"""Products `B A` of two thin factors: their singular values, without forming the product."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spectralclip._linalg.precision import on_host

# Relative to the largest: what lies below is the rounding of the two QR decompositions.
ROUNDING = 1e-13


class FactoredSVD(NamedTuple):
    """`U diag(S) Vh` in float64 on the CPU; S descends, and U and Vh are orthonormal."""

    U: Tensor  # (m, q), with q the smallest of m, n and the number of columns of B
    S: Tensor
    Vh: Tensor  # (q, n)

    @property
    def rank(self) -> int:
        """How many values are more than rounding."""
        largest = float(self.S[0]) if self.S.numel() else 0.0
        return int(self.S.gt(ROUNDING * largest).sum())


def factored_svd(B: Tensor, A: Tensor) -> FactoredSVD:
    """The singular value decomposition of `B A`, for B of few columns and A of as many rows.

    With `B = Q R` and `A^T = P T` it is that of `R T^T`, a matrix with the rank's side:
    `O((m + n) r^2)` operations in place of those of an m x n matrix. Values are right to some
    roundings of `||B|| ||A||`.
    """
    Q, R = torch.linalg.qr(on_host(B))
    P, T = torch.linalg.qr(on_host(A).T)
    left, S, right = torch.linalg.svd(R @ T.T, full_matrices=False)
    return FactoredSVD(Q @ left, S, right @ P.T)


def factored_inner(B1: Tensor, A1: Tensor, B2: Tensor, A2: Tensor) -> float:
    """The Frobenius inner product `<B1 A1, B2 A2>`, from products of the factors alone."""
    B1, A1, B2, A2 = map(on_host, (B1, A1, B2, A2))
    return float(torch.sum((B1.T @ B2) * (A1 @ A2.T)))
