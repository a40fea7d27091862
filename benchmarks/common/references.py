"""True singular values in float64, by code that shares nothing with the library."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn

from experiments.measuring.oracle import PlainMap

DENSE_SIDE = 2500  # smaller ones are decomposed as dense matrices
# What the residuals in float64 prove about the relative errors. The errors are far smaller.
PROVEN = 3e-6
PROVEN_LARGEST = 1e-9


def reference_values(
    module: nn.Module, in_shape: tuple[int, ...], count: int, polish: bool = True
) -> np.ndarray:
    """The `count` largest singular values, descending, counted with multiplicity.

    Layers whose values repeat exactly are decomposed block by block: a Krylov method meets
    only one copy of each, and finds the others by rounding errors alone. For other layers
    ARPACK finds the vectors in the layer's own precision and the values are then computed in
    float64. Without `polish` that second part is left out; the values are then good to 1e-5.
    """
    if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
        return _pointwise_values(module, in_shape)[:count]
    if isinstance(module, nn.Conv2d) and module.padding_mode == "circular":
        return _circular_values(module, in_shape)[:count]
    gram = PlainMap(module, in_shape).gram_operator()
    if gram.shape[0] <= DENSE_SIDE:
        return np.sqrt(np.linalg.eigvalsh(gram @ np.eye(gram.shape[0]))[::-1][:count])
    found, vectors = _leading_pairs(
        PlainMap(module, in_shape, torch.float32).gram_operator(), count
    )
    return np.sqrt((_polished(gram, vectors) if polish else found)[:count])


def _pointwise_values(conv: nn.Conv2d, in_shape: tuple[int, ...]) -> np.ndarray:
    """A 1x1 convolution is the same matrix at each of its output positions."""
    values = np.linalg.svd(conv.weight.detach().double().numpy()[:, :, 0, 0], compute_uv=False)
    positions = math.prod(-(-size // s) for size, s in zip(in_shape[1:], conv.stride, strict=True))
    return np.repeat(values, positions)


def _circular_values(conv: nn.Conv2d, in_shape: tuple[int, ...]) -> np.ndarray:
    """A circular convolution of stride 1 is one matrix at each frequency."""
    symbols = np.fft.fft2(conv.weight.detach().double().numpy(), in_shape[1:]).transpose(2, 3, 0, 1)
    return np.sort(np.linalg.svd(symbols, compute_uv=False).ravel())[::-1]


def _leading_pairs(gram: LinearOperator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, descending, and eigenvectors by ARPACK; then once more on what is left.

    Values of zero-padded convolutions come in pairs that agree to 8 digits. If one of a pair
    was missed, it is the largest value of the operator with all found vectors projected out.
    """
    random, side = np.random.default_rng(0), gram.shape[0]
    options = {"tol": 2e-6, "ncv": min(side - 1, max(40, 3 * count))}
    start = random.standard_normal(side).astype(gram.dtype)
    values, vectors = eigsh(gram, count, v0=start, **options)
    for _ in range(5):

        def left_over(
            x: np.ndarray, values: np.ndarray = values, vectors: np.ndarray = vectors
        ) -> np.ndarray:
            return gram @ x - vectors @ (values * (vectors.T @ x.ravel()))

        rest = LinearOperator(gram.shape, matvec=left_over, dtype=gram.dtype)
        start = random.standard_normal(side).astype(gram.dtype)
        value, vector = eigsh(rest, 1, v0=start, tol=1e-3)
        if value[0] <= values.min() * (1 + 1e-4):
            break
        value, vector = eigsh(rest, 1, v0=start, **options)
        values, vectors = np.append(values, value), np.hstack([vectors, vector])
    order = np.argsort(values)[::-1]
    return values[order].astype(np.float64), vectors[:, order]


def _polished(gram: LinearOperator, vectors: np.ndarray) -> np.ndarray:
    """Eigenvalues in float64: the largest by ARPACK, the others by one Rayleigh-Ritz step.

    From vectors that single precision allows, that step gives values whose error is of the
    order of their residuals squared. The residuals themselves are a proof.
    """
    basis, _ = np.linalg.qr(vectors.astype(np.float64))
    images = gram @ basis
    values, mix = np.linalg.eigh(basis.T @ images)
    residuals = np.linalg.norm(images @ mix - (basis @ mix) * values, axis=0)
    if residuals.max() > 2 * PROVEN * values.min():
        raise ArithmeticError(f"The reference is only known to {residuals.max() / values.min():g}")
    largest = eigsh(gram, 1, v0=basis @ mix[:, -1], tol=2 * PROVEN_LARGEST)[0]
    return np.append(values[:-1], largest)[::-1]


def worst_error(values: np.ndarray, reference: np.ndarray) -> float:
    """The largest relative error, value by value in descending order."""
    if len(values) == 0:
        return math.nan
    true = reference[: len(values)]
    return float(np.max(np.abs(np.asarray(values, dtype=np.float64) - true) / true))
