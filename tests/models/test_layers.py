"""`find_layers` sees what a forward pass uses, and leaves the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cases import SwapAxes
from model_cases import IMAGES, network
from torch import Tensor, nn

import spectralclip as sc
from spectralclip._models.layers import FoundLayer, find_layers, skipped_layers

# --- What is found ---------------------------------------------------------------------------


def test_nested_modules_in_the_order_of_their_use() -> None:
    model = network()
    found = find_layers(model, IMAGES, compose="none")
    assert {name: layer.in_shapes for name, layer in found.items()} == {
        "0": ((3, 8, 8),),
        "1": ((4, 8, 8),),
        "3.conv1": ((4, 8, 8),),
        "3.bn1": ((4, 8, 8),),
        "3.conv2": ((4, 8, 8),),
        "3.down.0": ((4, 8, 8),),
        "3.down.1": ((4, 8, 8),),
        "7": ((64,),),
    }
    assert list(found) == ["0", "1", "3.conv1", "3.bn1", "3.conv2", "3.down.0", "3.down.1", "7"]
    for name, layer in found.items():
        assert layer == FoundLayer(name, (model.get_submodule(name),), layer.in_shapes, (), 1)
        sc.spectral_norm(layer.modules, layer.in_shapes[0])  # all fits together
    assert skipped_layers(model, IMAGES) == {}


def test_convolutions_and_norms_are_composed() -> None:
    model = network()
    found = find_layers(model, IMAGES)
    assert list(found) == ["0+1", "3.conv1+3.bn1", "3.conv2", "3.down.0+3.down.1", "7"]
    pair = found["3.down.0+3.down.1"]
    assert pair.modules == (model[3].down[0], model[3].down[1])
    assert pair.in_shapes == ((4, 8, 8),)
    assert sc.as_operator(pair.modules, pair.in_shapes[0]).out_shape == (4, 8, 8)


@pytest.mark.parametrize(
    ("first", "norm", "x"),
    [
        (nn.Linear(5, 4), nn.BatchNorm1d(4), torch.ones(2, 5)),
        (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), torch.ones(2, 3, 9)),
        (nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), torch.ones(2, 3, 4, 4)),
        (nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2, affine=False), torch.ones(2, 1, 3, 3, 3)),
    ],
)
def test_pairs(first: nn.Module, norm: nn.Module, x: Tensor) -> None:
    model = nn.Sequential(first, norm)
    assert find_layers(model, x) == {
        "0+1": FoundLayer("0+1", (first, norm), (tuple(x.shape[1:]),), (), 1)
    }
    assert skipped_layers(model, x) == {}
    assert "0" in find_layers(model, x, compose="none")


def test_what_is_not_a_pair() -> None:
    between = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4))
    assert list(find_layers(between, torch.ones(2, 4))) == ["0", "2"]
    batch_statistics = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))
    assert list(find_layers(batch_statistics, torch.ones(2, 4))) == ["0"]

    class Subclass(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](F.relu(self[0](x)))

    own_forward = Subclass(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert list(find_layers(own_forward, torch.ones(2, 4))) == ["0", "1"]


def test_a_sequential_of_another_class_is_one_too() -> None:
    class Plain(nn.Sequential):
        """As in torchvision's blocks."""

    model = Plain(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    assert list(find_layers(model, torch.ones(2, 4))) == ["0+1"]


class CallsParts(nn.Module):
    """Takes a sequence apart, and may do something between the parts."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[1](self.between(self.parts[0](x)))


@pytest.mark.parametrize(
    ("between", "names"),
    [
        (lambda x: x, ["parts.0+parts.1"]),
        (lambda x: x + 1, ["parts.0", "parts.1"]),
        (lambda x: x.relu_(), ["parts.0", "parts.1"]),
    ],
)
def test_a_pair_is_one_only_if_the_norm_reads_what_the_layer_made(
    between: Callable[[Tensor], Tensor], names: list[str]
) -> None:
    assert list(find_layers(CallsParts(between), torch.ones(2, 4))) == names


def test_a_layer_that_is_also_used_without_the_norm_is_no_pair() -> None:
    conv, norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
    model = nn.Sequential(nn.Sequential(conv, norm), conv)
    found = find_layers(model, torch.ones(1, 2, 4, 4))
    assert {name: layer.uses for name, layer in found.items()} == {"0.0": 2, "0.1": 1}


def test_layer_types_and_their_shapes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 6)
            self.position = nn.Parameter(torch.zeros(6))
            self.mix = nn.Linear(6, 5)
            self.swap = SwapAxes()
            self.conv = nn.ConvTranspose1d(5, 4, 3, stride=2)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, tokens: Tensor, factor: Tensor) -> Tensor:
            rows = self.words(tokens) * factor[:, None, None] + self.position
            return self.norm(self.conv(self.swap(self.mix(rows))))

    model = Mixed()
    tokens = torch.zeros(2, 7, dtype=torch.long)
    found = find_layers(model, (tokens, torch.ones(2)))
    assert {name: layer.in_shapes[0] for name, layer in found.items()} == {
        "words": (7, 11),
        "mix": (7, 6),
        "conv+norm": (5, 7),
    }
    for layer in found.values():
        sc.as_operator(layer.modules, layer.in_shapes[0])
    assert skipped_layers(model, (tokens, torch.ones(2))) == {
        "": "its own parameters (position) are used functionally, its submodules are looked at one "
        "by one"
    }


def test_the_model_may_be_a_layer_and_an_input_may_come_without_a_batch() -> None:
    layer = nn.Linear(4, 3)
    assert find_layers(layer, torch.ones(2, 4)) == {"": FoundLayer("", (layer,), ((4,),), (), 1)}
    assert find_layers(layer, torch.ones(4))[""].in_shapes == ((4,),)
    assert find_layers(nn.Conv2d(2, 3, 1), torch.ones(2, 5, 5))[""].in_shapes == ((2, 5, 5),)


# --- Bad input -------------------------------------------------------------------------------


def test_other_bad_input() -> None:
    with pytest.raises(TypeError, match="model must be a module, got function"):
        find_layers(F.relu, IMAGES)  # type: ignore[arg-type]
    lazy = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ValueError, match=r"'0\.weight' of Sequential.*run the model once"):
        find_layers(lazy, torch.ones(1, 3))
    assert isinstance(lazy[0], nn.LazyLinear)
    with pytest.raises(RuntimeError):
        find_layers(network(), torch.ones(1, math.prod((5, 5))))
