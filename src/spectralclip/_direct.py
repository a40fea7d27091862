"""Clipping layers whose blocks can be set freely: dense, 1x1, kernel = stride, batch norm.

There the nearest operator of norm at most c is found block by block: the singular values
above c become c, and everything else stays. With a batch norm beside it the composition's
matrix is clipped, and the factors are divided out again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_matrices(matrices: Tensor, max_norm: float) -> Tensor:
    """The nearest matrices of norm at most `max_norm`, for a batch `(b, rows, columns)`.

    With V and sigma from the Gram matrix of the smaller side, the excess
    `X V diag(1 - c / sigma) V^T` over the values above c is subtracted: what lies below c is not
    touched, and small values, of which squaring knows little, play no part.
    """
    wide = matrices.shape[-2] < matrices.shape[-1]
    exact = matrices.double()
    if wide:
        exact = exact.mT
    squares, vectors = torch.linalg.eigh(exact.mT @ exact)
    values = squares.clamp_min(0).sqrt()
    share = torch.where(values > max_norm, 1 - max_norm / values.clamp_min(1e-300), 0.0)
    most = int((share > 0).sum(-1).max())
    if most == 0:
        return matrices
    # Eigenvalues ascend: the excess sits in the last columns.
    vectors, share = vectors[..., -most:], share[..., -most:]
    exact = exact - ((exact @ vectors) * share[..., None, :]) @ vectors.mT
    result: Tensor = (exact.mT if wide else exact).to(matrices.dtype)
    return result
