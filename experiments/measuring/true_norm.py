"""The largest singular value of one layer, in float64, by code that the library has no part in."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

Shape = tuple[int, ...]

DENSE = 400  # below so many unknowns the whole spectrum is decomposed
BASIS = 32
TOLERANCE = 1e-5  # of the residual: the error of the value is of the order of its square


@dataclass(frozen=True)
class TrueNorm:
    """A norm, and what is left of `M^T M v - norm^2 v` for a unit vector v, over norm^2."""

    value: float
    residual: float


class _Sides:
    """A layer on flat vectors of its smaller side, by its own forward and backward alone."""

    def __init__(self, layer: nn.Module, in_shape: Shape, dtype: torch.dtype) -> None:
        self._layer = copy.deepcopy(layer).to(dtype).eval().requires_grad_(False)
        self._input = torch.zeros(1, *in_shape, dtype=dtype, requires_grad=True)
        # The layer is affine: its backward is the same everywhere, and its graph is kept.
        with torch.enable_grad():
            self._output = self._layer(self._input)
        self.on_outputs = self._output.numel() < self._input.numel()
        self.side = min(self._output.numel(), self._input.numel())

    def away(self, vector: Tensor) -> Tensor:
        """To the larger side."""
        return self._transposed(vector) if self.on_outputs else self._direct(vector)

    def gram(self, vector: Tensor) -> Tensor:
        """There and back."""
        if self.on_outputs:
            return self._direct(self._transposed(vector))
        return self._transposed(self._direct(vector))

    @torch.no_grad()
    def _direct(self, x: Tensor) -> Tensor:
        image: Tensor = self._layer(x.reshape(self._input.shape)) - self._output
        return image.flatten()

    def _transposed(self, y: Tensor) -> Tensor:
        y = y.reshape(self._output.shape)
        return torch.autograd.grad(self._output, self._input, y, retain_graph=True)[0].flatten()


def true_norm(layer: nn.Module, in_shape: Shape, *, seed: int = 0) -> TrueNorm:
    """The norm of an affine layer.

    Small layers are decomposed in float64. For others ARPACK looks for the leading vector in
    float32, and the norm is this vector's Rayleigh quotient in float64: from below, and off by
    the order of the residual squared.

    Args:
        layer: The layer; a copy is used, as in evaluation.
        in_shape: Shape of one input.
        seed: For the start.
    """
    precise = _Sides(layer, in_shape, torch.float64)
    if precise.side <= DENSE:
        rows = torch.eye(precise.side, dtype=torch.float64)
        matrix = torch.stack([precise.away(row) for row in rows])
        return TrueNorm(float(torch.linalg.matrix_norm(matrix, 2)), 0.0)
    vector = _leading(_Sides(layer, in_shape, torch.float32), seed).double()
    vector = vector / torch.linalg.vector_norm(vector)
    square = float(torch.linalg.vector_norm(precise.away(vector))) ** 2
    rest = torch.linalg.vector_norm(precise.gram(vector) - square * vector)
    return TrueNorm(math.sqrt(square), float(rest) / square)


def _leading(layer: _Sides, seed: int) -> Tensor:
    def gram(vector: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
        return layer.gram(torch.from_numpy(vector.reshape(-1))).numpy()  # type: ignore[return-value]

    start = np.random.default_rng(seed).standard_normal(layer.side).astype(np.float32)
    operator = LinearOperator((layer.side, layer.side), matvec=gram, dtype=np.float32)
    basis = min(BASIS, layer.side - 1)
    _, vectors = eigsh(operator, k=1, which="LA", v0=start, ncv=basis, tol=TOLERANCE)
    return torch.from_numpy(np.ascontiguousarray(vectors[:, 0]))
