"""A dense layer is its weight, once for each leading position."""

from __future__ import annotations

import torch
from torch import nn

from spectralclip import as_operator


def test_dense_layer_is_its_weight() -> None:
    layer = nn.Linear(7, 5)
    assert torch.equal(as_operator(layer, (7,)).to_dense(), layer.weight)
    assert torch.equal(as_operator(layer, (2, 7)).to_dense(), torch.block_diag(*[layer.weight] * 2))
