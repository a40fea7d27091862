"""Clipping layers whose blocks can be set freely: dense, 1x1, kernel = stride, batch norm.

There the nearest operator of norm at most c is found block by block: the singular values
above c become c, and everything else stays. With a batch norm beside it the composition's
matrix is clipped, and the factors are divided out again.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import decomposable, wide


@final
class DecomposedMatrices:
    """Matrices `(b, rows, columns)` with their singular values and vectors on the smaller side.

    They come from the Gram matrix in float64, which costs a fraction of an SVD. Squaring knows
    little of small values; those play no part in clipping.
    """

    def __init__(self, matrices: Tensor) -> None:
        self._is_wide = matrices.shape[-2] < matrices.shape[-1]
        self._device = matrices.device
        self._tall = decomposable(matrices.mT if self._is_wide else matrices)
        exact = wide(self._tall)
        squares, self._vectors = torch.linalg.eigh(exact.mT @ exact)
        self._values = squares.clamp_min(0).sqrt()

    @property
    def norm(self) -> float:
        """The largest singular value of all."""
        return float(self._values.max())

    def clipped(self, max_norm: float) -> Tensor:
        """The nearest matrices of norm at most `max_norm`.

        With the excess `X V diag(1 - c / sigma) V^T` over the values above c subtracted, what lies
        below c is not touched.
        """
        values = self._values
        share = torch.where(values > max_norm, 1 - max_norm / values.clamp_min(1e-300), 0.0)
        most = int((share > 0).sum(-1).max())
        # Eigenvalues ascend: the excess sits in the last columns.
        first = values.shape[-1] - most
        # Where nearly everything is taken away, what is left needs the longer arithmetic.
        far = self.norm > 100 * max_norm
        dtype = torch.float64 if far else self._tall.dtype
        tall, vectors = self._tall.to(dtype), self._vectors[..., first:].to(dtype)
        share = share[..., None, first:].to(dtype)
        clipped: Tensor = tall - ((tall @ vectors) * share) @ vectors.mT
        clipped = clipped.to(self._device, self._tall.dtype)
        return clipped.mT if self._is_wide else clipped
