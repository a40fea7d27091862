"""Layers with all that a forward pass shows of them: shared weights, sizes, chains and pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from call_graph_cases import SMALL_IMAGES, Model, conv, names, norm
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import spectralclip as sc
from spectralclip._models.layers import FoundLayer, find_layers, skipped_layers


def test_a_module_used_twice_is_one_layer() -> None:
    conv = nn.Conv2d(2, 2, 3, stride=2)
    model = nn.Sequential(conv, nn.ReLU(), conv)
    found = find_layers(model, torch.ones(1, 2, 11, 11))
    assert found == {"0": FoundLayer("0", (conv,), ((2, 11, 11), (2, 5, 5)), ("2",), 2)}


def test_tied_weights_name_each_other() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 4)
            self.mix = nn.Linear(4, 4)
            self.head = nn.Linear(4, 9, bias=False)
            self.other = nn.Linear(4, 9)
            self.head.weight = self.embed.weight
            self.other.bias = nn.Parameter(torch.zeros(9))

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.mix(self.embed(tokens))
            return self.head(x) + self.other(x)

    found = find_layers(Language(), torch.zeros(1, 3, dtype=torch.long))
    assert {name: layer.shared for name, layer in found.items()} == {
        "embed": ("head",),
        "mix": (),
        "head": ("embed",),
        "other": (),
    }


def test_a_weight_used_under_another_name() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    model.spare = nn.Linear(3, 3)
    model.spare.weight = model[0].weight
    model.forward = lambda x: model[0](x)
    assert find_layers(model, torch.ones(1, 3))["0"].shared == ("spare",)
    assert skipped_layers(model, torch.ones(1, 3)) == {"spare": "not used in the forward pass"}


def test_a_shared_bias_is_not_a_shared_weight() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].bias = model[0].bias
    assert [layer.shared for layer in find_layers(model, torch.ones(1, 3)).values()] == [(), ()]


def test_tied_parametrized_weights_and_pairs() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    model[1].parametrizations.weight.original = model[0][0].weight
    found = find_layers(model, torch.ones(2, 4))
    assert {name: layer.shared for name, layer in found.items()} == {
        "0.0+0.1": ("1",),
        "1": ("0.0",),
    }


def test_each_size_once() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            while x.shape[-1] > 2:
                x = F.avg_pool2d(self.conv(self.conv(x)), 2)
            return x

    (layer,) = find_layers(Pyramid(), torch.ones(1, 1, 8, 8)).values()
    assert layer.in_shapes == ((1, 8, 8), (1, 4, 4))
    assert layer.uses == 4


def test_sizes_of_a_pair() -> None:
    model = Model(lambda m, x: m.bn(m.conv(m.bn(m.conv(x))[..., ::2])), conv=conv(), bn=norm())
    assert find_layers(model, SMALL_IMAGES)["conv+bn"].in_shapes == ((2, 6, 6), (2, 6, 3))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(conv(), conv(), conv(1)), ["0+1+2"]),
        (nn.Sequential(norm(), conv(), norm()), ["0+1+2"]),
        (nn.Sequential(conv(), nn.Identity(), nn.Dropout(0.5), conv()), ["0+3"]),
        (nn.Sequential(conv(), nn.AvgPool2d(2), norm()), ["0+1+2"]),
        (nn.Sequential(conv(), nn.Flatten(), nn.Linear(72, 3)), ["0+1+2"]),
        (nn.Sequential(conv(), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)), ["0", "3"]),
        # Pooling that leads to the first layer, or from the last one, is left out.
        (nn.Sequential(nn.AvgPool2d(2), conv(), nn.AvgPool2d(3), nn.Flatten()), ["1"]),
        (nn.Sequential(nn.ZeroPad2d(1), conv(), conv(), nn.Upsample(3)), ["1+2"]),
        # A norm without parameters of its own scales all the same.
        (nn.Sequential(conv(), nn.BatchNorm2d(2, affine=False), conv()), ["0+1+2"]),
        (nn.Sequential(nn.BatchNorm2d(2, affine=False), conv(), nn.ReLU()), ["0+1"]),
        (nn.Sequential(nn.BatchNorm2d(2, affine=False), nn.ReLU(), conv()), ["2"]),
        (nn.Sequential(*(nn.BatchNorm2d(2, affine=False) for _ in "ab"), nn.ReLU(), conv()), ["3"]),
        (nn.Sequential(conv(), nn.BatchNorm2d(2, track_running_stats=False), conv()), ["0", "2"]),
        (nn.Sequential(conv(), nn.MaxPool2d(2), conv()), ["0", "2"]),
        (nn.Sequential(conv(), nn.Softmax2d(), norm(), conv()), ["0", "2+3"]),
        (nn.Sequential(conv(), nn.PixelShuffle(1), nn.PReLU(), conv()), ["0", "3"]),
        (nn.Sequential(nn.Sequential(conv()), nn.Sequential(nn.Sequential(conv()))), ["0.0+1.0.0"]),
    ],
)
def test_chains(model: nn.Module, expected: list[str]) -> None:
    found = find_layers(model, SMALL_IMAGES, "chains")
    assert list(found) == expected
    for layer in found.values():
        assert layer.modules == tuple(model.get_submodule(part) for part in layer.name.split("+"))
        sc.as_operator(layer.modules, layer.in_shapes[0])


def test_an_embedding_may_begin_a_chain() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    (layer,) = find_layers(model, torch.zeros(2, 7, dtype=torch.long), "chains").values()
    assert layer.name == "0+1" and layer.in_shapes == ((7, 5),)
    expected = model[1].weight @ model[0].weight.T
    dense = sc.as_operator(layer.modules, (7, 5)).to_dense()
    torch.testing.assert_close(dense[:3, :5], expected.detach())


def test_without_a_batch_dimension_chains_end_where_a_batch_would_matter() -> None:
    model = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Conv1d(3, 2, 1), nn.Flatten(0), nn.Linear(8, 2))
    assert names(model, torch.ones(3, 4), "chains") == ["0+1", "3"]
    batched = nn.Sequential(nn.Linear(4, 4), nn.Flatten(0, 1), nn.Linear(4, 4))
    assert names(batched, torch.ones(2, 3, 4), "chains") == ["0", "2"]


def test_clipping_a_chain() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4
    result = sc.clip_model_(model, torch.zeros(1, 6), 0.5, compose="chains")
    assert list(result) == ["0+1", "3"]
    product = model[1].weight.detach() @ model[0].weight.detach()
    assert float(torch.linalg.matrix_norm(product, 2)) <= 0.5005
    assert float(torch.linalg.matrix_norm(model[0].weight.detach(), 2)) > 0.5005


def test_pairs_by_name() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        return m.last(m.bn(y)) + y

    model = Model(run, conv=conv(), bn=norm(), last=conv())
    assert names(model) == ["conv", "bn", "last"]
    for compose in ("conv_bn", "none"):
        assert names(model, compose=compose, pairs=[("conv", "bn")]) == ["conv+bn", "last"]
    assert names(model, compose="none", pairs=[("bn", "last")]) == ["conv", "bn+last"]
    both = [("bn", "last"), ("conv", "bn")]
    assert names(model, compose="none", pairs=both) == ["conv+bn+last"]
    assert names(model, compose="chains", pairs=both[1:]) == ["conv+bn+last"]
    assert list(sc.clip_model_(model, SMALL_IMAGES, 9.0, pairs=both[1:])) == ["conv+bn", "last"]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda m, x: m.bn(F.relu(m.conv(x))), "'bn' does not follow 'conv'.* untouched: 0, of 1"),
        (lambda m, x: m.bn(m.conv(x).relu_()), "'bn' does not follow 'conv'"),
        (lambda m, x: m.bn(m.conv(x)) + m.bn(x), ".* inputs read: 2, of which outputs of 'conv'"),
        (lambda m, x: m.bn(m.conv(x)) + m.conv(x), ".* untouched: 1, of 2 that it made"),
        (lambda m, x: m.conv(x), "'bn' is no layer: not used in the forward pass"),
        (lambda m, x: m.conv(m.bn(x)), "'bn' does not follow 'conv'"),
    ],
)
def test_pairs_that_do_not_follow_each_other(run: Callable[..., Any], message: str) -> None:
    model = Model(run, conv=conv(), bn=norm())
    with pytest.raises(ValueError, match=rf"pairs has \('conv', 'bn'\), but {message}"):
        find_layers(model, SMALL_IMAGES, pairs=[("conv", "bn")])


def test_bad_pairs() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        return m.bn(y) + m.other(y) + m.act(y)

    model = Model(run, conv=conv(), bn=norm(), other=norm(), act=nn.ReLU())
    with pytest.raises(ValueError, match="there is no module 'bn1'"):
        find_layers(model, SMALL_IMAGES, pairs=[("conv", "bn1")])
    with pytest.raises(ValueError, match="'act' is no layer: it is no batch norm"):
        find_layers(model, SMALL_IMAGES, pairs=[("conv", "act")])
    with pytest.raises(ValueError, match="two layers after 'conv'"):
        find_layers(model, SMALL_IMAGES, pairs=[("conv", "bn"), ("conv", "other")])
    for pairs in (["conv"], [("conv", "bn", "other")], [("conv", 1)]):
        with pytest.raises(TypeError, match="pairs must hold tuples of two names"):
            find_layers(model, SMALL_IMAGES, pairs=pairs)  # type: ignore[arg-type]
    for compose in ("norms", True, None):
        with pytest.raises(ValueError, match="compose must be 'none', 'conv_bn' or 'chains', got"):
            find_layers(model, SMALL_IMAGES, compose)  # type: ignore[arg-type]


def test_a_parameter_that_two_parts_share_is_listed_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    (layer,) = find_layers(nn.Sequential(first, second), torch.zeros(1, 3), "chains").values()
    assert [id(one) for one in layer.parameters()] == [id(first.weight), id(first.bias)]
