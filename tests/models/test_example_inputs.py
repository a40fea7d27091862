"""What a model may be called with."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from model_cases import network
from torch import nn

from spectralclip._models.layers import FoundLayer, find_layers, skipped_layers


class TakesMuch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Any, scale: Any = None, *, rounds: int = 1) -> Any:
        x = x["left"] + x["right"][0] if isinstance(x, dict) else x
        for _ in range(rounds):
            x = self.norm(self.linear(x))
        return {"out": x if scale is None else x * scale}


@pytest.mark.parametrize(
    ("inputs", "uses"),
    [
        (torch.ones(2, 4), 1),
        ([torch.ones(2, 4)], 1),
        ((torch.ones(2, 4), torch.ones(2, 1)), 1),
        ((torch.ones(2, 4), None), 1),
        ({"x": torch.ones(2, 4), "rounds": 3}, 3),
        (UserDict(x=torch.ones(2, 4), rounds=2), 2),
        (({"left": torch.ones(2, 4), "right": [torch.ones(2, 4), None]},), 1),
    ],
)
def test_ways_to_give_the_input(inputs: Any, uses: int) -> None:
    model = TakesMuch()
    expected = FoundLayer("linear+norm", (model.linear, model.norm), ((4,),), (), uses)
    assert find_layers(model, inputs) == {"linear+norm": expected}
    assert skipped_layers(model, inputs) == {}


@pytest.mark.parametrize("inputs", [None, 3, "x", [1.0], {"x": 3}, ()])
def test_inputs_without_tensors_are_refused(inputs: Any) -> None:
    with pytest.raises(TypeError, match="example_inputs must be a tensor, a tuple of arguments or"):
        find_layers(network(), inputs)
