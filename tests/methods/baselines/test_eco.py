"""Explicitly constructed orthogonal convolutions, as they are and as published."""

from __future__ import annotations

import copy

import numpy as np
from orthogonal_cases import attached, circular
from scipy.linalg import expm

from oracle import dense_matrix, singular_values
from spectralclip.methods.baselines.eco import ECO


def test_eco_is_the_exponential_of_the_dilated_layer() -> None:
    conv = circular()
    spread = copy.deepcopy(conv)
    spread.dilation, spread.padding = (3, 3), (3, 3)
    spread._reversed_padding_repeated_twice = [3] * 4
    matrix = dense_matrix(spread, (3, 9, 9))
    model, attachment = attached(ECO(), conv, (3, 9, 9))
    expected = expm((matrix - matrix.T) / 2)
    np.testing.assert_allclose(dense_matrix(model, (3, 9, 9)), expected, atol=1e-12)
    attachment.remove()
    assert model[0].weight.shape == (3, 3, 3, 3)
    assert (model[0].dilation, model[0].padding) == ((3, 3), (3, 3))


def test_eco_as_published_is_not_orthogonal_where_the_kernel_does_not_divide_the_side() -> None:
    """Dilation ceil(n / k), on the image as it is: ours takes another size of kernel instead."""
    conv = circular(2)
    model, attachment = attached(ECO(), copy.deepcopy(conv), (2, 9, 9))
    attachment.remove()
    values = singular_values(model, (2, 8, 8))
    assert values[0] > 1.05
    model, attachment = attached(ECO(), conv, (2, 8, 8))
    attachment.remove()
    assert model[0].dilation == (2, 2)
    assert model[0].kernel_size == (5, 5)  # four taps, and one of zeros in order to have a middle
    values = singular_values(model, (2, 8, 8))
    np.testing.assert_allclose(values, 1, atol=1e-9)
