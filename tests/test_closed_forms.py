"""The paper's closed forms against the dense SVD of torch's own convolutions."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from oracle import singular_values
from spectralclip.closed_forms import (
    corollary_bounds,
    duplicated_values,
    lemma_singular_values,
    theorem_singular_values,
)


def dense_values(kernels: torch.Tensor, sides: tuple[int, ...], *, inputs: bool) -> np.ndarray:
    """Singular values of the circular convolution with m channels on one side, by NumPy."""
    m, *taps = kernels.shape
    axes = len(taps)
    conv_type = (nn.Conv1d, nn.Conv2d)[axes - 1]
    before = tuple(t // 2 for t in taps)
    pad = [side for t, b in zip(taps[::-1], before[::-1], strict=True) for side in (b, t - 1 - b)]
    c_in, c_out = (m, 1) if inputs else (1, m)
    conv = conv_type(c_in, c_out, tuple(taps), bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(kernels.reshape(c_out, c_in, *taps))
    wrap = functools.partial(nn.functional.pad, pad=pad, mode="circular")
    return singular_values([wrap, conv], (c_in, *sides))


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("side", [5, 8, 11])
def test_lemma_on_one_axis(taps: int, side: int) -> None:
    kernel = gaussian(taps)
    expected = dense_values(kernel[None], (side,), inputs=False)
    np.testing.assert_allclose(lemma_singular_values(kernel, side), expected, atol=1e-12)


@pytest.mark.parametrize(("taps", "sides"), [((3, 3), (6, 6)), ((2, 3), (5, 8)), ((5, 1), (7, 4))])
def test_lemma_on_two_axes(taps: tuple[int, int], sides: tuple[int, int]) -> None:
    kernel = gaussian(*taps)
    expected = dense_values(kernel[None], sides, inputs=False)
    np.testing.assert_allclose(lemma_singular_values(kernel, sides), expected, atol=1e-12)


def test_the_vectorized_lemma_fails_on_two_axes() -> None:
    """Read literally, as a formula in vectorized kernel and input, the Lemma is wrong in 2-d."""
    kernel, sides = gaussian(3, 3), (6, 6)
    vectorized = lemma_singular_values(kernel.flatten(), 36).numpy()
    assert np.abs(vectorized - dense_values(kernel[None], sides, inputs=False)).max() > 0.1


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize(("taps", "sides"), [((3,), (9,)), ((4,), (6,)), ((3, 3), (5, 6))])
def test_theorem(taps: tuple[int, ...], sides: tuple[int, ...], inputs: bool) -> None:
    kernels = gaussian(4, *taps)
    expected = dense_values(kernels, sides, inputs=inputs)[: int(np.prod(sides))]
    np.testing.assert_allclose(theorem_singular_values(kernels, sides), expected, atol=1e-12)


@pytest.mark.parametrize("sides", [(7,), (8,), (5, 5), (4, 6), (5, 6)])
def test_remark_counts_the_duplicates(sides: tuple[int, ...]) -> None:
    kernels = gaussian(2, *[3] * len(sides))
    values = dense_values(kernels, sides, inputs=False)[: int(np.prod(sides))]
    gaps = np.abs(values[:, None] - values[None]) + np.eye(len(values))
    assert duplicated_values(sides) == int((gaps.min(axis=1) < 1e-10).sum())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize(("taps", "sides"), [((3,), (9,)), ((3, 3), (5, 6))])
def test_corollary_bounds(
    channels: int, inputs: bool, taps: tuple[int, ...], sides: tuple[int, ...]
) -> None:
    kernels = gaussian(channels, *taps)
    norm = dense_values(kernels, sides, inputs=inputs)[0]
    lower, upper = corollary_bounds(kernels)
    assert float(lower) <= norm * (1 + 1e-12)
    assert norm <= float(upper) * (1 + 1e-12)
    exact = dense_values(kernels.abs(), sides, inputs=inputs)[0]
    for bound in corollary_bounds(kernels.abs()):
        assert float(bound) == pytest.approx(exact, rel=1e-12)


def test_sides_must_match_the_kernel() -> None:
    with pytest.raises(ValueError, match="Expected 2 positive sides"):
        lemma_singular_values(gaussian(3, 3), (6,))
