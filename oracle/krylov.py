"""Norms and leading singular values of layers of any size, by ARPACK on forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from oracle.circulant import is_circulant, symbol_values
from oracle.matrix import Array, Shape, evaluate, in_double

DENSE_SIDE = 400  # up to here the Gram matrix is formed, in less time than ARPACK takes
DENSE_SIDE_OF_SPECTRA = 2500
BASIS = 40
KEPT_GRAPHS = 8  # vectors at a time for which the graph of the backward pass is kept
KNOWN = 1e-3  # a residual above this proves too little
# What the residuals in float64 prove about the relative errors of several values. The errors
# are far smaller.
PROVEN, PROVEN_LARGEST = 3e-6, 1e-9


@dataclass(frozen=True)
class TrueNorm:
    """A norm, and what is left of `M^T M v - norm^2 v` for a unit vector v, over norm^2."""

    value: float
    residual: float


class PlainOperator:
    """A layer on flat rows, by its own forward and backward alone.

    Attributes:
        side: The smaller of the numbers of inputs and outputs, the side of the Gram matrix.
    """

    def __init__(self, layer: Any, in_shape: Shape, dtype: torch.dtype = torch.float64) -> None:
        self._parts = [
            part.to(dtype) if isinstance(part, nn.Module) else part for part in in_double(layer)
        ]
        tensors = [
            tensor
            for part in self._parts
            if isinstance(part, nn.Module)
            for tensor in (*part.parameters(), *part.buffers())
        ]
        self.is_finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self._in_shape, self.dtype = tuple(in_shape), dtype
        self._graphs: dict[int, tuple[Tensor, Tensor]] = {}
        self._offset = self._graph(1)[1].detach()
        self._on_outputs = self._offset.numel() < math.prod(in_shape)
        self.side = min(self._offset.numel(), math.prod(in_shape))

    def gram(self, rows: Tensor) -> Tensor:
        """Rows of the smaller side to the larger one and back."""
        if self._on_outputs:
            return self._direct(self._transposed(rows))
        return self._transposed(self._direct(rows))

    def away(self, rows: Tensor) -> Tensor:
        """Rows of the smaller side to the larger one."""
        return self._transposed(rows) if self._on_outputs else self._direct(rows)

    @torch.no_grad()
    def _direct(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, *self._in_shape).to(self._device)
        return (evaluate(self._parts, x) - self._offset).flatten(1).cpu()

    def _transposed(self, y: Tensor) -> Tensor:
        # The layer is affine: its backward is the same everywhere.
        zeros, outputs = self._graph(len(y))
        y = y.reshape(outputs.shape).to(self._device)
        return torch.autograd.grad(outputs, zeros, y, retain_graph=True)[0].flatten(1).cpu()

    def _graph(self, count: int) -> tuple[Tensor, Tensor]:
        if count in self._graphs:
            return self._graphs[count]
        zeros = torch.zeros(count, *self._in_shape, dtype=self.dtype, device=self._device)
        with torch.enable_grad():
            graph = zeros.requires_grad_(), evaluate(self._parts, zeros)
        if count <= KEPT_GRAPHS:
            self._graphs[count] = graph
        return graph


def true_norm(
    layer: Any,
    in_shape: Shape,
    *,
    search: torch.dtype = torch.float64,
    tol: float = 1e-6,
    starts: int = 1,
    seed: int = 0,
) -> TrueNorm:
    """The norm of an affine layer of any size; NaN where weights are not finite.

    Small layers are decomposed. For others ARPACK looks for the leading vector, and the norm is
    this vector's Rayleigh quotient in float64: from below, and off by the order of the residual
    squared where the next value is apart, by half of the residual in any case.

    Args:
        layer: A module, or a sequence of modules that follow each other; copies are used.
        in_shape: Shape of one input.
        search: The precision in which ARPACK looks; single precision takes half the time.
        tol: The residual that it looks for.
        starts: From so many random vectors, of which the largest norm counts.
        seed: For the starts.
    """
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # the same at every position
        in_shape = (in_shape[0], *[1] * (len(in_shape) - 1))
    precise = PlainOperator(layer, in_shape)
    if not precise.is_finite:
        return TrueNorm(math.nan, math.nan)
    if precise.side <= DENSE_SIDE:
        return TrueNorm(math.sqrt(max(0.0, _dense_eigenvalues(precise)[0])), 0.0)
    coarse = precise if search == torch.float64 else PlainOperator(layer, in_shape, search)
    return max(
        (_largest(precise, coarse, tol, start) for start in range(seed, seed + starts)),
        key=lambda found: found.value,
    )


def _largest(precise: PlainOperator, coarse: PlainOperator, tol: float, seed: int) -> TrueNorm:
    gram, scale = _as_scipy(coarse)
    if not scale:  # the map is zero, on which ARPACK gives up
        return TrueNorm(0.0, 0.0)
    start = np.random.default_rng(seed).standard_normal(precise.side).astype(gram.dtype)
    _, vectors = eigsh(gram, 1, which="LA", v0=start, ncv=BASIS, tol=tol)
    vector = torch.from_numpy(np.ascontiguousarray(vectors.T)).double()
    vector = vector / vector.norm()
    square = float(precise.away(vector).norm()) ** 2
    residual = float((precise.gram(vector) - square * vector).norm()) / square
    if residual > KNOWN:
        raise ArithmeticError(f"The norm is only known to {residual / 2:g}")
    return TrueNorm(math.sqrt(square), residual)


def leading_values(layer: Any, in_shape: Shape, count: int, *, polish: bool = True) -> Array:
    """The `count` largest singular values, descending, counted with multiplicity.

    Layers whose values repeat exactly are decomposed block by block: a Krylov method meets only
    one copy of each, and finds the others by rounding errors alone. For other layers ARPACK finds
    the vectors in the layer's own precision and the values are then computed in float64. Without
    `polish` that second part is left out; the values are then good to 1e-5.
    """
    if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1:
        return _pointwise_values(layer, in_shape)[:count]
    if isinstance(layer, nn.Conv2d) and is_circulant(layer, in_shape[1:]):
        return symbol_values(layer, in_shape[1:])[:count]
    precise = PlainOperator(layer, in_shape)
    if precise.side <= DENSE_SIDE_OF_SPECTRA:
        return np.asarray(np.sqrt(_dense_eigenvalues(precise)[:count].clip(0.0)))
    gram, scale = _as_scipy(PlainOperator(layer, in_shape, next(layer.parameters()).dtype))
    found, vectors = _leading_pairs(gram, count)
    if polish:
        gram, scale = _as_scipy(precise)
        found = _polished(gram, vectors)
    return np.asarray(np.sqrt(scale * found[:count]))


def _dense_eigenvalues(operator: PlainOperator) -> Array:
    """All of the Gram matrix, descending."""
    gram = operator.gram(torch.eye(operator.side, dtype=torch.float64))
    return np.asarray(torch.linalg.eigvalsh(gram).flip(0).numpy())


def _pointwise_values(conv: nn.Conv2d, in_shape: Shape) -> Array:
    """A 1x1 convolution is the same matrix at each of its output positions."""
    values = np.linalg.svd(conv.weight.detach().double().numpy()[:, :, 0, 0], compute_uv=False)
    positions = math.prod(-(-size // s) for size, s in zip(in_shape[1:], conv.stride, strict=True))
    return np.repeat(values, positions)


def _as_scipy(operator: PlainOperator) -> tuple[Any, float]:
    """The Gram matrix for SciPy over a scale, and the scale: that of what a random vector becomes.

    ARPACK's tolerance is not relative for values below 4e-11, and the squares of a layer whose
    weights have decayed may be below.
    """

    def apply(columns: NDArray[Any]) -> NDArray[Any]:
        rows = torch.from_numpy(np.ascontiguousarray(columns.reshape(operator.side, -1).T))
        images = operator.gram(rows.to(operator.dtype))
        return np.asarray(images.T.numpy().reshape(columns.shape))

    dtype = torch.empty(0, dtype=operator.dtype).numpy().dtype
    shape = (operator.side, operator.side)
    gram = LinearOperator(shape, matvec=apply, matmat=apply, dtype=dtype)
    start = np.random.default_rng(0).standard_normal(operator.side).astype(dtype)
    scale = float(np.linalg.norm(gram @ start) / np.linalg.norm(start))
    return gram * dtype.type(1.0 / (scale or 1.0)), scale


def _leading_pairs(gram: Any, count: int) -> tuple[Array, NDArray[Any]]:
    """Eigenvalues, descending, and eigenvectors by ARPACK; then once more on what is left.

    Values of zero-padded convolutions come in pairs that agree to 8 digits. If one of a pair
    was missed, it is the largest value of the operator with all found vectors projected out.
    """
    random, side = np.random.default_rng(0), gram.shape[0]
    options = {"tol": 2e-6, "ncv": min(side - 1, max(BASIS, 3 * count))}
    start = random.standard_normal(side).astype(gram.dtype)
    values, vectors = eigsh(gram, count, v0=start, **options)
    for _ in range(5):
        left_over = _left_over(gram, values, vectors)
        rest = LinearOperator(gram.shape, matvec=left_over, dtype=gram.dtype)
        start = random.standard_normal(side).astype(gram.dtype)
        value, vector = eigsh(rest, 1, v0=start, tol=1e-3)
        if value[0] <= values.min() * (1 + 1e-4):
            break
        value, vector = eigsh(rest, 1, v0=start, **options)
        values, vectors = np.append(values, value), np.hstack([vectors, vector])
    order = np.argsort(values)[::-1]
    return values[order].astype(np.float64), vectors[:, order]


def _left_over(
    gram: Any, values: NDArray[Any], vectors: NDArray[Any]
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda x: np.asarray(gram @ x - vectors @ (values * (vectors.T @ x.ravel())))


def _polished(gram: Any, vectors: NDArray[Any]) -> Array:
    """Eigenvalues in float64: the largest by ARPACK, the others by one Rayleigh-Ritz step.

    From vectors that single precision allows, that step gives values whose error is of the
    order of their residuals squared. The residuals themselves are a proof.
    """
    basis, _ = np.linalg.qr(vectors.astype(np.float64))
    images = gram @ basis
    values, mix = np.linalg.eigh(basis.T @ images)
    residuals = np.linalg.norm(images @ mix - (basis @ mix) * values, axis=0)
    if residuals.max() > 2 * PROVEN * values.min():
        raise ArithmeticError(f"The values are only known to {residuals.max() / values.min():g}")
    largest = eigsh(gram, 1, v0=basis @ mix[:, -1], tol=2 * PROVEN_LARGEST)[0]
    return np.append(values[:-1], largest)[::-1]
