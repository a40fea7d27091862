"""Rayleigh and Ritz for many tiny complex blocks, written in real numbers.

A block of k complex vectors is kept as 2 k real rows, real and imaginary part in turn. From the
Gram matrices of the vectors and of their images follow the Ritz values and how to combine the
rows. For one or two vectors the formulas are written out: a call of LAPACK for each of many tiny
matrices would take longer than all the rest.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
EPS, TINY = float(np.finfo(np.float32).eps), 1e-300


@np.errstate(all="ignore")  # what is not finite stays so, and is seen in the values
def ritz_coefficients(vectors: Array, images: Array) -> tuple[Array, Array]:
    """The Ritz values of a map, and what turns the vectors into Ritz vectors.

    Args:
        vectors: `(..., 2 k, 2 k)`, inner products of the real rows of the vectors, in float64
            but perhaps from single precision.
        images: Those of the rows of their images.

    Returns:
        The values, `(..., k)`, descending, and a real `(..., 2 k, 2 k)` by which to multiply rows.
    """
    k = vectors.shape[-1] // 2
    if k == 1:
        size = np.maximum(_length(vectors, 0), TINY)
        mix = np.eye(2) / np.sqrt(size)[..., None, None]
        return np.sqrt(_length(images, 0) / size)[..., None], mix
    return _two(vectors, images) if k == 2 else _many(_complex(vectors), _complex(images))


def _length(gram: Array, i: int) -> Array:
    """`<v_i, v_i>`."""
    length: Array = gram[..., 2 * i, 2 * i] + gram[..., 2 * i + 1, 2 * i + 1]
    return length


def _product(gram: Array) -> Array:
    """`<v_1, v_2>`, antilinear in the first."""
    product: Array = gram[..., 0, 2] + gram[..., 1, 3] + 1j * (gram[..., 0, 3] - gram[..., 1, 2])
    return product


def _two(vectors: Array, images: Array) -> tuple[Array, Array]:
    """Gram and Schmidt on two vectors, then Jacobi's rotation of their images."""
    n1, n2 = np.maximum(_length(vectors, 0), TINY), _length(vectors, 1)
    h11, h22, h12 = _length(images, 0), _length(images, 1), _product(images)
    # The second vector less its share g of the first, of length d; the first has length root.
    g = _product(vectors) / n1
    share = g.real**2 + g.imag**2
    d = np.sqrt(np.maximum(n2 - share * n1, 64 * EPS * np.maximum(n1, n2)))
    root = np.sqrt(n1)
    b = (h12 - g * h11) / (root * d)
    c = np.maximum(h22 + share * h11 - 2 * (g.conj() * h12).real, 0) / d**2
    values, first, second = _hermitian_eigen(h11 / n1, b, c)
    # Back to the vectors as they were.
    one, two = first / root, second / d
    other_one, other_two = -second.conj() / root, first.conj() / d
    mix = np.stack((one - two * g, two, other_one - other_two * g, other_two), -1)
    return np.sqrt(np.maximum(values, 0)), _real(mix.reshape(*mix.shape[:-1], 2, 2))


def _hermitian_eigen(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """Eigenvalues of `[[a, b], [b*, c]]`, the larger first, and the entries of its vector."""
    mean, half = (a + c) / 2, (a - c) / 2
    radius = np.sqrt(half**2 + b.real**2 + b.imag**2)
    # Of its two forms, (half + radius, b*) and (b, radius - half), the one without cancellation.
    ahead, large = half >= 0, np.abs(half) + radius
    first, second = np.where(ahead, large, b), np.where(ahead, b.conj(), large)
    size = np.sqrt(np.abs(first) ** 2 + np.abs(second) ** 2)
    still = size <= TINY  # a multiple of the identity
    size = np.where(still, 1.0, size)
    first, second = np.where(still, 1.0, first / size), np.where(still, 0.0, second / size)
    return np.stack((mean + radius, mean - radius), -1), first, second


def _many(vectors: Array, images: Array) -> tuple[Array, Array]:
    """By LAPACK: whiten the vectors, leaving out what is only rounding, and turn their images."""
    sizes, directions = np.linalg.eigh(vectors)
    floor = 64 * EPS * np.maximum(sizes[..., -1:], TINY)
    inverse = np.where(sizes > floor, 1 / np.sqrt(np.maximum(sizes, floor)), 0.0)
    whiten = np.swapaxes(directions.conj() * inverse[..., None, :], -1, -2)
    squares, rotation = np.linalg.eigh(whiten @ images @ _adjoint(whiten))
    # Inner products are antilinear in the first: coefficients of vectors are conjugates.
    mix = (_adjoint(rotation[..., ::-1]) @ whiten).conj()
    return np.sqrt(np.maximum(squares[..., ::-1], 0)), _real(mix)


def _adjoint(matrices: Array) -> Array:
    return np.swapaxes(matrices.conj(), -1, -2)


def _complex(gram: Array) -> Array:
    """Inner products `<v_i, v_j>` from those of the real rows."""
    rr, ri = gram[..., 0::2, 0::2], gram[..., 0::2, 1::2]
    ir, ii = gram[..., 1::2, 0::2], gram[..., 1::2, 1::2]
    products: Array = rr + ii + 1j * (ri - ir)
    return products


def _real(mix: Array) -> Array:
    """Complex coefficients as what they do to real and imaginary parts: `(..., 2 k, 2 k)`."""
    k = mix.shape[-1]
    real = np.empty((*mix.shape[:-2], 2 * k, 2 * k))
    real[..., 0::2, 0::2] = real[..., 1::2, 1::2] = mix.real
    real[..., 0::2, 1::2], real[..., 1::2, 0::2] = -mix.imag, mix.imag
    return real
