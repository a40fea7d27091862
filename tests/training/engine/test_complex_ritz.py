"""Rayleigh and Ritz on tiny complex blocks agrees with NumPy's own decompositions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectralclip._training.engine.complex_ritz import ritz_coefficients

Array = np.ndarray[Any, Any]


def random_complex(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def real_rows(vectors: Array) -> Array:
    """Real and imaginary parts in turn: `(..., 2 k, n)`."""
    both = np.stack((vectors.real, vectors.imag), -2)
    return both.reshape(*both.shape[:-3], -1, both.shape[-1])


def complex_rows(rows: Array) -> Array:
    return np.asarray(rows[..., 0::2, :] + 1j * rows[..., 1::2, :])


def solved(vectors: Array, matrix: Array) -> tuple[Array, Array, Array]:
    """Values, Ritz vectors and their images, as the library combines them."""
    rows, images = real_rows(vectors), real_rows(vectors @ matrix.T)
    grams = [part @ np.swapaxes(part, -1, -2) for part in (rows, images)]
    values, mix = ritz_coefficients(grams[0], grams[1])
    return values, complex_rows(mix @ rows), complex_rows(mix @ images)


def restricted(vectors: Array, matrix: Array) -> Array:
    """Singular values of the matrix on the span of the vectors, by an orthonormal basis."""
    basis, _ = np.linalg.qr(vectors.T)
    return np.asarray(np.linalg.svd(matrix @ basis, compute_uv=False))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_values_and_vectors_are_those_of_the_restricted_map(k: int) -> None:
    rng = np.random.default_rng(k)
    matrix, vectors = random_complex(rng, 7, 6), random_complex(rng, k, 6)
    values, right, images = solved(vectors, matrix)
    np.testing.assert_allclose(values, restricted(vectors, matrix), rtol=1e-10)
    np.testing.assert_allclose(right.conj() @ right.T, np.eye(k), atol=1e-10)
    # Orthogonal images, of the lengths that the values say.
    np.testing.assert_allclose(images.conj() @ images.T, np.diag(values**2), atol=1e-9)
    np.testing.assert_allclose(images, right @ matrix.T, atol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_many_blocks_at_once_are_solved_one_by_one(k: int) -> None:
    rng = np.random.default_rng(10 + k)
    matrix, vectors = random_complex(rng, 5, 5), random_complex(rng, 2, 3, k, 5)
    values, _, _ = solved(vectors, matrix)
    assert values.shape == (2, 3, k)
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(values[place], restricted(vectors[place], matrix), rtol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_equal_values_come_with_orthonormal_vectors(k: int) -> None:
    rng = np.random.default_rng(20 + k)
    unitary, _ = np.linalg.qr(random_complex(rng, 6, 6))
    values, right, _ = solved(random_complex(rng, k, 6), 2.5 * unitary)
    np.testing.assert_allclose(values, 2.5, rtol=1e-10)
    np.testing.assert_allclose(right.conj() @ right.T, np.eye(k), atol=1e-9)


def test_orthonormal_vectors_of_equal_value_stay_as_they_are() -> None:
    """A multiple of the identity to begin with: no rotation is better than any other."""
    values, right, _ = solved(np.eye(2, 4) + 0j, 3.0 * np.eye(4) + 0j)
    np.testing.assert_allclose(values, 3.0)
    np.testing.assert_allclose(np.abs(right), np.eye(2, 4), atol=1e-12)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_parallel_vectors_never_give_more_than_there_is(k: int) -> None:
    rng = np.random.default_rng(30 + k)
    matrix = random_complex(rng, 6, 6)
    one = random_complex(rng, 1, 6)
    vectors = one * random_complex(rng, k, 1)
    values, right, images = solved(vectors, matrix)
    assert np.isfinite(right).all()
    assert np.isfinite(images).all()
    norm = np.linalg.norm(matrix, 2)
    here = np.linalg.norm(one @ matrix.T) / np.linalg.norm(one)
    assert values[0] <= norm * (1 + 1e-9)
    np.testing.assert_allclose(values[0], here, rtol=1e-6)
    np.testing.assert_allclose(values[1:], 0, atol=1e-4 * norm)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_nearly_parallel_vectors_in_single_precision_do_not_overshoot(k: int) -> None:
    rng = np.random.default_rng(40 + k)
    matrix = random_complex(rng, 6, 6)
    vectors = random_complex(rng, 1, 6) + 1e-4 * random_complex(rng, k, 6)
    rows, images = (real_rows(part).astype(np.float32) for part in (vectors, vectors @ matrix.T))
    values, mix = ritz_coefficients(*(np.float64(part @ part.T) for part in (rows, images)))
    assert np.isfinite(mix).all()
    assert values[0] <= np.linalg.norm(matrix, 2) * (1 + 1e-3)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("zeros", ["first", "last", "all"])
def test_vectors_of_zero_are_worth_nothing_and_spoil_nothing(k: int, zeros: str) -> None:
    rng = np.random.default_rng(50 + k)
    matrix, vectors = random_complex(rng, 6, 6), random_complex(rng, k, 6)
    vectors[{"first": 0, "last": -1, "all": slice(None)}[zeros]] = 0
    values, right, _ = solved(vectors, matrix)
    assert np.isfinite(values).all()
    assert np.isfinite(right).all()
    left = vectors[np.abs(vectors).sum(1) > 0]
    expected = np.zeros(k)
    if len(left):
        expected[: len(left)] = restricted(left, matrix)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_map_of_zero_has_values_of_zero(k: int) -> None:
    rng = np.random.default_rng(60 + k)
    values, right, _ = solved(random_complex(rng, k, 6), np.zeros((4, 6)))
    np.testing.assert_array_equal(values, 0)
    np.testing.assert_allclose(np.linalg.norm(right, axis=1), 1, rtol=1e-9)
