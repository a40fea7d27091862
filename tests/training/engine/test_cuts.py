"""Where cuts lead: the nearest point at which no value is above its target, against a solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_stages import of_seed, run, stage_of
from scipy.optimize import nnls
from torch import nn

from oracle import symbol_norms
from spectralclip._training.engine.cuts import of_unit_size
from spectralclip._training.engine.small import multipliers, unit_matrix


@pytest.mark.parametrize("seed", range(4))
def test_multipliers_are_those_of_the_least_change(seed: int) -> None:
    """`min |sum x_i g_i|^2 / 2 - excess x` over `x >= 0`, which NNLS solves by active sets."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(6, 12, generator=generator, dtype=torch.float64)
    Q, excess = gradients @ gradients.mT, torch.randn(6, generator=generator).double()
    root = np.linalg.cholesky(Q.numpy())
    expected, _ = nnls(root.T, np.linalg.solve(root, excess.numpy()))
    found = multipliers(Q[None], excess[None], unit_matrix(6, Q), 200)[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


def test_gradients_of_unit_size_say_what_they_were() -> None:
    given = torch.tensor([[[3e30, -1e30]], [[0.0, 0.0]]])
    scaled, size = of_unit_size(given)
    assert float(scaled.abs().max()) == 1.0 and bool(scaled.isfinite().all())
    torch.testing.assert_close(scaled[0] * size[0], given[0])


def test_values_below_their_target_are_left_alone() -> None:
    layer = of_seed(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"))
    norm = float(symbol_norms(layer, (6, 6)).max())
    before = layer.weight.detach().clone()
    run(stage_of(layer, (3, 6, 6), bound=norm / 0.985), 3)
    assert torch.equal(layer.weight, before)
    run(stage_of(layer, (3, 6, 6), bound=norm / 0.995), 1)
    assert not torch.equal(layer.weight, before)
