"""Certified norms: two numbers that the largest singular value lies between, and why.

- `dense`: LAPACK's singular values of the matrix, in float64. Its error is a few roundings times
  the side of the matrix; the margin is far larger.
- `symbol`: a circular convolution of stride 1 is block diagonal after a Fourier transform; the norm
  is the largest one of a block, by LAPACK.
- `cholesky`: the lower end is `||M v|| / ||v||` for the vector v that ARPACK finds, which cannot be
  above the norm. The upper end u is proved by a Cholesky factor of `u^2 I - M^T M`, which exists
  only if u is not below the norm. The matrix is banded, with channels running fastest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import eigsh

from conformance.layer import Layer
from conformance.matrices import matrix

DENSE_SIDE = 600  # the longest shorter side that is decomposed whole
# Relative, and a thousand times and more what LAPACK leaves in matrices of this size: about 1e-13.
MARGIN = 1e-10
# How far above the lower end a Cholesky factor is tried. Its own roundings, of the order of the
# square of the band's width, are below 1e-9 here.
SHIFT = 1e-8


@dataclass(frozen=True)
class Norm:
    """The largest singular value between two ends, and the next one, which is not certified."""

    value: float
    lower: float
    upper: float
    second: float
    method: str

    def scaled(self, factor: float) -> Norm:
        ends = (self.value, self.lower, self.upper, self.second)
        return Norm(*(float(factor * end) for end in ends), self.method)


def certified(layer: Layer) -> Norm:
    """The norm of a layer."""
    largest = float(np.abs(layer.weight).max())
    if largest == 0:
        return Norm(0.0, 0.0, 0.0, 0.0, "dense")
    scale = 2.0 ** math.floor(math.log2(largest))  # a power of two: exact, and squares in range
    whole = matrix(layer) / scale
    if min(whole.shape) <= DENSE_SIDE:
        found = _around(np.linalg.svd(whole.toarray(), compute_uv=False), "dense")
    elif layer.padding_mode == "circular" and max(layer.stride) == 1 and layer.groups == 1:
        found = _around(_symbol_values(layer, scale), "symbol")
    else:
        found = _by_cholesky(layer, whole)
    return found.scaled(scale)


def _around(values: Any, method: str) -> Norm:
    first, second = (*np.sort(np.ravel(values))[::-1][:2], 0.0)[:2]
    return Norm(first, first * (1 - MARGIN), first * (1 + MARGIN), second, method)


def _symbol_values(layer: Layer, scale: float) -> Any:
    """On a torus only where the kernel begins depends on the padding: a phase of each block."""
    assert layer.out_shape[1:] == layer.in_shape[1:]
    taps = np.zeros((*layer.weight.shape[:2], *layer.in_shape[1:]))
    for tap in np.ndindex(*layer.weight.shape[2:]):
        place = [t * d % n for t, d, n in zip(tap, layer.dilation, layer.in_shape[1:], strict=True)]
        taps[(..., *place)] += layer.weight[(..., *tap)].astype(np.float64) / scale
    symbols = np.fft.fftn(taps, axes=range(2, taps.ndim))
    blocks = symbols.reshape(*symbols.shape[:2], -1).transpose(2, 0, 1)
    return np.linalg.svd(blocks, compute_uv=False)


def _by_cholesky(layer: Layer, whole: sparse.csr_array) -> Norm:
    shape = layer.in_shape
    if whole.shape[0] < whole.shape[1]:
        whole, shape = sparse.csr_array(whole.T), layer.out_shape
    order = np.arange(whole.shape[1]).reshape(shape[0], -1).T.ravel()  # channels run fastest
    gram = sparse.csr_array(whole.T @ whole)[order][:, order]
    start = np.random.default_rng(0).standard_normal(gram.shape[0])
    values, vectors = eigsh(gram, 2, which="LA", v0=start, tol=1e-9, ncv=40)
    leading = np.empty_like(start)
    leading[order] = vectors[:, -1]
    value = float(np.linalg.norm(whole @ leading) / np.linalg.norm(leading))
    upper = value * (1 + SHIFT)
    _require_positive(upper**2 * sparse.csr_array(sparse.identity(len(order))) - gram)
    lower, second = value * (1 - MARGIN), math.sqrt(float(values[0]))
    return Norm(value, lower, upper * (1 + 10 * MARGIN), second, "cholesky")


def _require_positive(symmetric: Any) -> None:
    """Raise `LinAlgError` unless a banded matrix has a Cholesky factor."""
    entries = sparse.coo_array(symmetric)
    below = entries.row >= entries.col
    rows, columns = entries.row[below], entries.col[below]
    band = np.zeros((int((rows - columns).max()) + 1, entries.shape[0]))
    band[rows - columns, columns] = entries.data[below]
    linalg.cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)
