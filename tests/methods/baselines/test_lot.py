"""Layer-wise orthogonal training: the nearest orthogonal layer."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from orthogonal_cases import attached
from torch import nn

from oracle import dense_matrix, singular_values
from spectralclip.methods.baselines.lot import LOT


@pytest.mark.parametrize("stride", [1, 2])
def test_lot_is_the_nearest_orthogonal_layer(stride: int) -> None:
    conv = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", stride=stride).double()
    u, _, v = np.linalg.svd(dense_matrix(conv, (2, 6, 6)), full_matrices=False)
    model, _ = attached(LOT(iterations=60), conv, (2, 6, 6))
    np.testing.assert_allclose(dense_matrix(model, (2, 6, 6)), u @ v, atol=1e-9)


def test_few_iterations_of_lot_leave_small_values_small() -> None:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.5, 0.1, 0.004])))
    for iterations in (1, 2, 3, 5, 10, 15):
        model, _ = attached(LOT(iterations), copy.deepcopy(layer), (4,))
        values = singular_values(model, (4,))
        assert values[0] <= 1 + 1e-12
        if iterations == 10:
            assert values[2] > 0.99
            assert values[3] < 0.3
    assert values[3] > 0.9


def test_settings() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        LOT(iterations=0)
