"""`find_layers` sees what a forward pass uses, and leaves the model as it was."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from cases import HalvedConv, LowRank, SwapAxes, train_batch_norm
from sharding import SHARDS
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from untouched import assert_same, disturb, state, surroundings

import spectralclip as sc
from spectralclip._models.layers import FoundLayer, find_layers, skipped_layers


class Block(nn.Module):
    """A residual block whose second convolution is called with a keyword."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return self.conv2(input=y) + self.down(x)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        Block(4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )


IMAGES = torch.ones(2, 3, 8, 8)


# --- What is found ---------------------------------------------------------------------------


def test_nested_modules_in_the_order_of_their_use() -> None:
    model = network()
    found = find_layers(model, IMAGES, compose=False)
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
    assert "0" in find_layers(model, x, compose=False)


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


# --- Shared ----------------------------------------------------------------------------------


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


# --- Skipped ---------------------------------------------------------------------------------


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
    assert list(find_layers(model, x)) == ["used"]
    one_by_one = "its submodules are looked at one by one"
    assert skipped_layers(model, x) == {
        "": f"its own parameters are not seen in use, {one_by_one}",
        "attention": "its own parameters (in_proj_weight, in_proj_bias) are used functionally, "
        + one_by_one,
        "attention.out_proj": "is not called: its parameters (weight, bias) are used functionally",
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
    assert list(found) == [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_are_skipped() -> None:
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Sequential(nn.Linear(3, 3))))
    assert list(find_layers(model, torch.ones(1, 3))) == ["0"]
    assert skipped_layers(model, torch.ones(1, 3)) == {
        "1": "scripted, so that its parameters are out of reach"
    }


# --- The model is as it was ------------------------------------------------------------------


class Restless(nn.Module):
    """Changes all it can in a forward pass, whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.spectral = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.old_spectral = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.words = nn.Embedding(5, 4, max_norm=0.1)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.calls = 0
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count += 1
        self.replaced = self.replaced + 1
        self.cache = x
        self.words(torch.zeros(2, dtype=torch.long))
        x = F.dropout(self.old_spectral(self.spectral(self.norm(self.linear(x)))), 0.5, True)
        if self.fails:
            raise RuntimeError("out of luck")
        return x.mul_(torch.rand(()))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("use", [find_layers, skipped_layers])
def test_model_is_as_it_was(use: Callable[..., Any], fails: bool) -> None:
    model = Restless()
    train_batch_norm(model.norm)
    model.norm.eval()
    model.fails = fails
    model.linear.register_forward_hook(lambda *_: None)
    disturb(model)
    x = torch.ones(3, 4)
    before, outside = state(model), surroundings()
    if fails:
        with pytest.raises(RuntimeError, match="out of luck"):
            use(model, x)
    else:
        use(model, x)
    assert_same(before, state(model))
    assert_same(outside, surroundings())
    assert model.calls == 0
    assert torch.equal(x, torch.ones(3, 4))


def test_model_in_training_is_as_it_was() -> None:
    model = network()
    disturb(model)
    model[1].eval()
    before, outside = state(model), surroundings()
    find_layers(model, IMAGES)
    skipped_layers(model, IMAGES)
    assert_same(before, state(model))
    assert_same(outside, surroundings())
    assert torch.equal(IMAGES, torch.ones(2, 3, 8, 8))


def test_evaluation_semantics() -> None:
    """In training mode batch norm would refuse a batch of one."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    assert list(find_layers(model, torch.ones(1, 3))) == ["0+1"]


def test_input_that_the_model_writes_into_is_as_it_was() -> None:
    x = -torch.ones(2, 3)
    find_layers(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)), x)
    assert torch.equal(x, -torch.ones(2, 3))


def test_under_inference_mode_and_autocast() -> None:
    model = network()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert list(find_layers(model, IMAGES)) == list(find_layers(network(), IMAGES))


def test_on_the_meta_device() -> None:
    """Shapes need no values."""
    model = network().to("meta")
    assert find_layers(model, IMAGES.to("meta"))["7"].in_shapes == ((64,),)


# --- Ways to give the input ------------------------------------------------------------------


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


# --- Wrapped models --------------------------------------------------------------------------


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrap", ["compile", "method", "inside", "ddp", "both"])
def test_names_are_those_of_the_bare_model(wrap: str, process_group: None) -> None:
    model = network()
    expected = find_layers(model, IMAGES)
    compiled = partial(torch.compile, backend="eager", fullgraph=True)
    if wrap == "inside":
        whole = nn.Sequential(*model[:3], compiled(model[3]), *model[4:-1], compiled(model[-1]))
    elif wrap == "method":
        whole = model
        whole.compile(backend="eager", fullgraph=True)
    else:
        whole = compiled(model) if wrap == "compile" else DistributedDataParallel(model)
        whole = compiled(whole) if wrap == "both" else whole
    assert find_layers(whole, IMAGES) == expected
    assert skipped_layers(whole, IMAGES) == {}
    assert find_layers(nn.DataParallel(model), IMAGES) == expected


def test_compiled_layers() -> None:
    layers = nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(*(torch.compile(layer, backend="eager") for layer in layers))
    found = find_layers(model, torch.ones(2, 4))
    assert {name: layer.modules for name, layer in found.items()} == {
        "0": (layers[0],),
        "1": (layers[1],),
    }
    assert skipped_layers(model, torch.ones(2, 4)) == {}


@SHARDS
def test_sharded_models_can_go_on(process_group: None) -> None:
    """A pass gathers weights, and a module under `fully_shard` keeps a record of that."""
    model, bare = network(), network()
    expected = find_layers(bare, IMAGES)
    fully_shard(model[3])
    fully_shard(model)
    for _ in range(2):
        assert list(find_layers(model, IMAGES)) == list(expected)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    model(IMAGES).sum().backward()
    assert list(find_layers(model, IMAGES)) == list(expected)
    assert all(isinstance(parameter.grad, DTensor) for parameter in model.parameters())
    model(IMAGES)


# --- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [None, 3, "x", [1.0], {"x": 3}, ()])
def test_inputs_without_tensors_are_refused(inputs: Any) -> None:
    with pytest.raises(TypeError, match="example_inputs must be a tensor, a tuple of arguments or"):
        find_layers(network(), inputs)


def test_other_bad_input() -> None:
    with pytest.raises(TypeError, match="model must be a module, got function"):
        find_layers(F.relu, IMAGES)  # type: ignore[arg-type]
    lazy = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ValueError, match=r"'0\.weight' of Sequential.*run the model once"):
        find_layers(lazy, torch.ones(1, 3))
    assert isinstance(lazy[0], nn.LazyLinear)
    with pytest.raises(RuntimeError):
        find_layers(network(), torch.ones(1, math.prod((5, 5))))
