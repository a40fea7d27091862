"""Which modules may be layers, and why others are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import HalvedConv, LowRank
from model_cases import IMAGES
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from spectralclip._models.layers import FoundLayer, find_layers, skipped_layers


def test_layers_of_unknown_type_are_tested() -> None:
    class Bent(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    model = nn.Sequential(
        LowRank(6, 2, 6), Bent(6, 6), nn.BatchNorm1d(6), nn.PReLU(), nn.LayerNorm(6)
    )
    assert list(find_layers(model, torch.ones(2, 6))) == ["0", "2"]
    skipped = skipped_layers(model, torch.ones(2, 6))
    assert list(skipped) == ["1", "3", "4"]
    assert all("is not affine" in reason for reason in skipped.values())
    assert list(find_layers(HalvedConv(2, 3, 3), torch.ones(1, 2, 5, 5))) == [""]


def test_parametrized_layers_are_one_layer() -> None:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.ReLU(),
        nn.utils.spectral_norm(nn.Linear(4, 4)),
    )
    assert list(find_layers(model, torch.ones(2, 4))) == ["0", "2"]
    assert skipped_layers(model, torch.ones(2, 4)) == {}


def test_a_layer_with_layers_inside_is_one_layer() -> None:
    class Adapted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.adapter = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.adapter(x)

    model = nn.Sequential(Adapted(), nn.Linear(4, 4))
    model[1].weight = model[0].adapter[0].weight
    assert find_layers(model, torch.ones(2, 4)) == {
        "0": FoundLayer("0", (model[0],), ((4,),), ("1",), 1),
        "1": FoundLayer("1", (model[1],), ((4,),), ("0.adapter.0",), 1),
    }
    assert find_layers(model[0], torch.ones(2, 4))[""].shared == ()


def test_reasons() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.unused = nn.Linear(4, 4)
            self.used = nn.Linear(4, 4)
            self.fixed = nn.BatchNorm1d(3, affine=False)
            self.batch = nn.BatchNorm1d(3, track_running_stats=False)
            self.pair = nn.Bilinear(4, 4, 4)
            self.bag = nn.EmbeddingBag(5, 4)
            self.spare = nn.ParameterList([torch.zeros(4)])
            self.unused_parameter = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.used(self.attention(x, x, x)[0])
            y = self.pair(self.batch(self.fixed(y.relu())), x) + self.spare[0]
            return y + self.bag(torch.zeros(2, 3, dtype=torch.long))[:, None]

    x = torch.randn(2, 3, 4)
    model = Attending().train()
    packed = [f"attention.in_proj_weight[{part}]" for part in "qkv"]
    assert list(find_layers(model, x)) == [*packed, "attention.out_proj", "used"]
    one_by_one = "its submodules are looked at one by one"
    assert skipped_layers(model, x) == {
        "": f"its own parameters are not seen in use, {one_by_one}",
        "unused": "not used in the forward pass",
        "fixed": "has no parameters",
        "batch": "without running statistics it depends on the batch",
        "pair": "not called with a single tensor",
        "bag": "has no input shape: the bags of an EmbeddingBag differ in length",
        "spare": "is not called: its parameters (0) are used functionally",
    }


def test_layers_used_without_being_called() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(2, 3, 3, 3))
            self.conv = nn.Conv2d(2, 2, 1)
            self.weighted = parametrizations.weight_norm(nn.Conv2d(2, 2, 1))
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            y = F.conv2d(x, self.kernel)
            y = F.conv2d(y, self.conv.weight) + F.conv2d(y, self.weighted.weight)
            return self.norm.forward(y)

    model = Functional()
    assert find_layers(model, IMAGES) == {}
    assert skipped_layers(model, IMAGES) == {
        "": "its own parameters (kernel) are used functionally, its submodules are looked at one "
        "by one",
        "conv": "is not called: its parameters (weight) are used functionally",
        "weighted": "is not called: its parameters (parametrizations.weight.original0, "
        "parametrizations.weight.original1) are used functionally",
        "norm": "is not called: its parameters (weight, bias) are used functionally",
    }


def test_a_module_with_a_weight_of_its_own_is_a_layer() -> None:
    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(2, 3, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.kernel)

    model = nn.Sequential(Kernel(), nn.ReLU())
    assert list(find_layers(model, IMAGES)) == ["0"]


def test_transformer_layers_are_used_as_in_training() -> None:
    """In evaluation torch would take a short cut that calls none of them."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = find_layers(model, torch.ones(2, 3, 8))
    projections = [*(f"in_proj_weight[{part}]" for part in "qkv"), "out_proj"]
    inside = [*(f"self_attn.{own}" for own in projections), "linear1", "linear2"]
    assert list(found) == [f"layers.{i}.{own}" for i in (0, 1) for own in inside]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_are_skipped() -> None:
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Sequential(nn.Linear(3, 3))))
    assert list(find_layers(model, torch.ones(1, 3))) == ["0"]
    assert skipped_layers(model, torch.ones(1, 3)) == {
        "1": "scripted, so that its parameters are out of reach"
    }
