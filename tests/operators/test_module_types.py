"""A layer of a known type is taken at its word only where nothing of it was changed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spectralclip as sc


def test_a_patched_forward_counts() -> None:
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: 10 * F.linear(x, layer.weight)  # type: ignore[method-assign]
    expected = 10 * torch.linalg.matrix_norm(layer.weight.detach(), 2)
    torch.testing.assert_close(sc.spectral_norm(layer, (4,)), expected)
    layer.forward = lambda x: torch.relu(F.linear(x, layer.weight))  # type: ignore[method-assign]
    with pytest.raises(sc.NotAffineError):
        sc.svds(layer, (4,), 1)


def test_a_global_forward_hook_counts() -> None:
    layer = nn.Linear(4, 4)
    expected = 10 * torch.linalg.matrix_norm(layer.weight.detach(), 2)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: 10 * out)
    try:
        found = sc.spectral_norm(layer, (4,))
    finally:
        handle.remove()
    torch.testing.assert_close(found, expected)
