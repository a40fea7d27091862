"""Which layers an audit shows, what it says of them, and what it does with broken ones."""

from __future__ import annotations

import torch
from audit_cases import audited
from torch import Tensor, nn

from spectralclip._audit import audit


def test_rows_are_in_order_with_chains_behind_their_last_part() -> None:
    _, found = audited("mobilenet")
    names = [layer.name for layer in found.layers]
    chain = "4.body.6+4.body.7+5+6+7"
    at = names.index("4.body.6")
    assert names[at:] == ["4.body.6", "4.body.7", "4.body.6+4.body.7", "7", chain]
    assert found[chain].parts == ("4.body.6", "4.body.7", "5", "6", "7")
    assert found[chain].kind == "Conv2d + BatchNorm2d + AdaptiveAvgPool2d + Flatten + Linear"
    assert found["0+1"].role == "chain" and found["0"].role == "layer"
    assert found.skipped == {}


class Twice(nn.Module):
    """One convolution at two sizes, whose norm grows with the size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.tied = nn.Conv2d(2, 2, 3, padding=1)
        self.tied.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        large, small = self.conv(x), self.conv(x[..., ::4, ::4])
        return large.sum((2, 3)) * small.sum((2, 3)) + self.tied(x).sum((2, 3))


def test_layers_used_at_several_sizes_show_the_worst() -> None:
    found = audit(Twice(), torch.zeros(1, 2, 8, 8), lipschitz=False)
    layer = found["conv"]
    assert layer.uses == 2 and layer.in_shape == (2, 8, 8) and layer.shared == ("tied",)
