"""Layers are divided among processes by what they cost."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training_cases import layers_of, tower

from spectralclip._training.distributed.assignment import divided, estimated_cost


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_division_is_balanced(size: int) -> None:
    layers = layers_of(tower(), (6, 4, 4))
    costs = {name: estimated_cost(layer) for name, layer in layers.items()}
    owners = divided(layers, costs, size)
    loads = [sum(costs[n] for n, o in owners.items() if o == rank) for rank in range(size)]
    # Graham's bound for the longest first, of which the mean is at most the best.
    best = max(sum(costs.values()) / size, *costs.values())
    assert list(owners) == list(layers) and max(loads) <= (4 / 3) * best


def test_layers_that_share_a_weight_have_one_owner() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    model[4].weight = model[0].weight
    model[5].bias = model[4].bias
    layers = layers_of(model, (8,))
    owners = divided(layers, dict.fromkeys(layers, 1.0), 6)
    assert owners["0"] == owners["4"] == owners["5"]
    assert len(set(owners.values())) == 4


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False), (4, 8, 8)),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), (4, 8, 8)),
        (nn.Linear(4, 6, bias=False), (5, 4)),
    ],
)
def test_cost_is_that_of_an_application(module: nn.Module, shape: tuple[int, ...]) -> None:
    """As torch itself counts, which takes two operations for a product and a sum."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *shape))
    (layer,) = layers_of(nn.Sequential(module), shape).values()
    assert 2 * estimated_cost(layer) == counter.get_total_flops()
