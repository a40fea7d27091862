from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from experiments import models
from experiments.data import load
from experiments.models import Inputs, dla, resnet18
from experiments.models.normalize import Normalize
from spectralclip import find_layers
from spectralclip.nn import CenterNorm

COLOUR = Inputs(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
DIGITS = Inputs((1, 28, 28), (0.0,), (1.0,))


def built(
    name: str, width: int = 8, batch_norm: bool = True, data: Inputs = COLOUR, seed: int = 0
) -> nn.Module:
    return models.build(name, width=width, batch_norm=batch_norm, dataset=data, seed=seed)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "data", "published"),
    [
        ("resnet18", COLOUR, 11_173_962),
        ("resnet18", DIGITS, 11_172_810),
        ("dla", COLOUR, 16_291_386),
    ],
)
def test_parameters_of_the_published_architectures(name: str, data: Inputs, published: int) -> None:
    with torch.device("meta"):
        assert parameters(built(name, 64, data=data)) == published


def test_parameters_of_the_small_network() -> None:
    kernel, dense = 9 * 64, 28 * 28 * 64 * 10 + 10
    assert parameters(built("small", 64, False, DIGITS)) == kernel + dense
    assert parameters(built("small", 64, True, DIGITS)) == kernel + dense + 128


@pytest.mark.parametrize("name", models.NAMES)
def test_without_batch_norm_nothing_else_changes(name: str) -> None:
    with_it, without = built(name, batch_norm=True), built(name, batch_norm=False)
    norms = [m for m in with_it.modules() if isinstance(m, nn.BatchNorm2d)]
    convolutions = [m for m in with_it.modules() if isinstance(m, nn.Conv2d)]
    assert len(norms) == len(convolutions)
    own = {id(p) for norm in norms for p in norm.parameters()}
    rest = {n: p for n, p in with_it.named_parameters() if id(p) not in own}
    others = dict(without.named_parameters())
    assert rest.keys() == others.keys()
    assert all(torch.equal(rest[key], others[key]) for key in rest)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in without.modules())


# The sizes of images behind each convolution, as the paper's authors list them.
SIDES = {
    "resnet18": {32: 5, 16: 5, 8: 5, 4: 5},
    "dla": {32: 9, 16: 14, 8: 14, 4: 6},
}


@pytest.mark.parametrize("name", ["resnet18", "dla"])
def test_convolutions_and_the_sizes_of_their_images(name: str) -> None:
    model = built(name).eval()
    sides: Counter[int] = Counter()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, x, y: sides.update([int(y.shape[-1])]))
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)
    assert sides == SIDES[name]
    sides.clear()
    digits = built(name, data=DIGITS).eval()
    for module in digits.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, x, y: sides.update([int(y.shape[-1])]))
    digits(torch.rand(1, 1, 28, 28))
    smaller = {32: 28, 16: 14, 8: 7, 4: 4}
    assert sides == {smaller[side]: count for side, count in SIDES[name].items()}


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("name", models.NAMES)
def test_every_parameter_takes_part(name: str, batch_norm: bool) -> None:
    model = built(name, batch_norm=batch_norm)
    F.cross_entropy(model(torch.rand(8, 3, 32, 32)), torch.arange(8)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_residual_sums_are_halved_in_resnet18_and_plain_in_dla() -> None:
    x = torch.randn(2, 8, 6, 6)
    for block, wanted in (
        (resnet18.BasicBlock(8, 8, 1, batch_norm=False, halved=True), F.relu(x) / 2),
        (dla.BasicBlock(8, 8, 1, batch_norm=False), F.relu(x)),
    ):
        nn.init.zeros_(block.conv2.weight)
        assert torch.equal(block(x), wanted)
    blocks = [m for m in built("dla").modules() if isinstance(m, dla.BasicBlock)]
    assert blocks and not any(block.halved for block in blocks)
    # Without batch norm and biases a factor goes through: all eight halves come out at the end.
    model, images = built("resnet18", batch_norm=False), torch.rand(2, 3, 32, 32)
    features: list[torch.Tensor] = []
    model.linear.register_forward_pre_hook(lambda m, x: features.append(x[0]))  # type: ignore
    model(images)
    torch.testing.assert_close(2**8 * features[0], _plain_features(model, images))


def _plain_features(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Those of a usual ResNet-18 without batch norm, with the weights of `model`."""
    weights = model.state_dict()
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (COLOUR.mean, COLOUR.std))
    x = F.conv2d((images - mean) / std, weights["conv1.weight"], padding=1).relu()
    for stage in range(1, 5):
        for place in range(2):
            key = f"layer{stage}.{place}"
            stride = 2 if stage > 1 and place == 0 else 1
            inner = F.conv2d(x, weights[f"{key}.conv1.weight"], stride=stride, padding=1).relu()
            inner = F.conv2d(inner, weights[f"{key}.conv2.weight"], padding=1)
            if f"{key}.shortcut.0.weight" in weights:
                x = F.conv2d(x, weights[f"{key}.shortcut.0.weight"], stride=stride)
            x = (inner + x).relu()
    return x.mean((2, 3))


@pytest.mark.slow
def test_resnet18_against_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    ours = built("resnet18")
    with torch.no_grad():  # statistics and weights that are not those of the start
        for module in ours.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    tensor.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2, 2, 2, 2], layer_type="basic"
    )
    theirs = transformers.ResNetModel(config)
    theirs.embedder = nn.Sequential(ours.normalize, ours.conv1, ours.bn1, nn.ReLU())
    for stage, layers in enumerate(theirs.encoder.stages, start=1):
        for block, layer in zip(getattr(ours, f"layer{stage}"), layers.layers, strict=True):
            pairs = [(block.conv1, block.bn1, layer.layer[0])]
            pairs += [(block.conv2, block.bn2, layer.layer[1])]
            pairs += [(*block.shortcut, layer.shortcut)] if len(block.shortcut) else []
            for convolution, norm, place in pairs:
                place.convolution.load_state_dict(convolution.state_dict())
                place.normalization.load_state_dict(norm.state_dict())
            layer.activation = Halved()
    images = torch.rand(3, 3, 32, 32)
    features: list[torch.Tensor] = []
    ours.linear.register_forward_pre_hook(lambda m, x: features.append(x[0]))  # type: ignore
    ours.eval()(images)
    wanted = theirs.eval()(images).pooler_output.flatten(1)
    torch.testing.assert_close(features[0], wanted)


@pytest.mark.parametrize("name", ["resnet18", "dla"])
def test_no_1x1_convolution_has_a_stride(name: str) -> None:
    """With channels last, the backward pass of such a one may write past its memory."""
    convolutions = [m for m in built(name).modules() if isinstance(m, nn.Conv2d)]
    strides = [m.stride for m in convolutions if m.kernel_size == (1, 1)]
    assert len(strides) >= 3 and set(strides) == {(1, 1)}


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x / 2).relu()


def test_a_tree_joins_all_its_parts() -> None:
    """With roots that copy one of their inputs, the output is that part of the tree."""
    tree = dla.DeepTree(4, 8, 2, batch_norm=False)
    x = torch.randn(2, 4, 8, 8)
    inner = tree.level_1(x)
    left = tree.left_node(inner)
    parts = [tree.prev_root(x), inner, left, tree.right_node(left)]
    for place, part in enumerate(parts):
        weight = torch.zeros(8, 4, 8)
        weight[:, place] = torch.eye(8)
        tree.root.conv.weight.data = weight.reshape(8, 32, 1, 1)
        assert torch.equal(tree(x), part)


@pytest.mark.parametrize("setting", [1, 2, 3, 4])
def test_the_settings_of_the_small_network(setting: int) -> None:
    kernel, stride, mode = {
        1: (3, 1, "reflect"),
        2: (3, 1, "zeros"),
        3: (3, 2, "zeros"),
        4: (5, 2, "replicate"),
    }[setting]
    model = models.build(
        "small", width=4, batch_norm=False, dataset=DIGITS, seed=0, setting=setting
    )
    images = torch.rand(2, 1, 28, 28)
    pad = F.pad(images, (kernel // 2,) * 4, mode="constant" if mode == "zeros" else mode)
    weights = model.state_dict()
    hidden = F.conv2d(pad, weights["conv.weight"], stride=stride).relu().flatten(1)
    wanted = hidden @ weights["linear.weight"].T + weights["linear.bias"]
    torch.testing.assert_close(model(images), wanted)
    if setting == 2:
        assert torch.equal(built("small", 4, False, DIGITS)(images), model(images))


@pytest.mark.parametrize("name", models.NAMES)
def test_weights_come_from_the_seed_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    one = built(name, seed=1).state_dict()
    torch.rand(7)
    same, other = built(name, seed=1).state_dict(), built(name, seed=2).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["linear.weight"], other["linear.weight"])
    torch.random.set_rng_state(state)
    expected = torch.rand(3)
    torch.random.set_rng_state(state)
    built(name, seed=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", models.NAMES)
def test_the_first_layer_normalizes_pixels(name: str) -> None:
    model = built(name).eval()
    assert next(key for key, _ in model.named_children()) == "normalize"
    images = torch.rand(2, 3, 32, 32)
    bare = built(name, data=Inputs()).eval()
    shifted = torch.stack(
        [(images[:, c] - COLOUR.mean[c]) / COLOUR.std[c] for c in range(3)], dim=1
    )
    torch.testing.assert_close(model(images), bare(shifted))


def test_numbers_that_cannot_normalize() -> None:
    with pytest.raises(ValueError, match="positive std for each channel"):
        Normalize((0.5,), (0.0,))
    with pytest.raises(ValueError, match="positive std for each channel"):
        Normalize((0.5, 0.5), (1.0,))


@pytest.mark.parametrize(("name", "count"), [("small", 1), ("resnet18", 20), ("dla", 43)])
def test_the_library_finds_the_layers(name: str, count: int) -> None:
    model, images = built(name), torch.rand(1, 3, 32, 32)
    alone = find_layers(model, images, compose="none")
    assert sum(isinstance(layer.modules[0], nn.Conv2d) for layer in alone.values()) == count
    assert "linear" in alone
    assert "normalize" not in alone
    joined = find_layers(model, images)
    assert sum(len(layer.modules) == 2 for layer in joined.values()) == count


def test_a_data_set_tells_what_a_model_needs() -> None:
    digits = load("digits")
    model = models.build("small", width=4, batch_norm=True, dataset=digits, seed=0)
    assert model(digits.test_images[:5].float() / 255).shape == (5, 10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "vgg"}, "expected a model among small, resnet18, dla, got 'vgg'"),
        ({"width": 0}, "expected a positive width for dla, got 0"),
        ({"width": 6}, "multiple of 4, got 6"),
        ({"setting": 2}, "got 2 for dla"),
        ({"name": "small", "setting": 5}, "from 1 to 4 for small and none for others, got 5"),
        ({"name": "small", "setting": 0}, "got 0 for small"),
    ],
)
def test_models_that_there_are_not(changes: dict[str, object], words: str) -> None:
    usual = {"name": "dla", "width": 8, "batch_norm": True, "dataset": COLOUR, "seed": 0}
    with pytest.raises(ValueError, match=words):
        models.build(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", models.NAMES)
def test_models_learn_synthetic_images(name: str) -> None:
    data = load("synthetic")
    model = models.build(name, width=8, batch_norm=True, dataset=data, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in torch.arange(480).split(40):
        loss = F.cross_entropy(model(data.train_images[batch] / 255), data.train_labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_norms_that_fit_a_bound_take_the_place_of_batch_norms() -> None:
    model = models.build(
        "resnet18", width=2, batch_norm=True, norm="center", dataset=COLOUR, seed=0
    )
    kinds = Counter(type(module) for module in model.modules())
    assert kinds[CenterNorm] == 20 and not kinds[nn.BatchNorm2d]


def test_scores_are_multiplied_within_the_network() -> None:
    plain = models.build("resnet18", width=2, batch_norm=False, dataset=COLOUR, seed=0)
    scaled = models.build(
        "resnet18", width=2, batch_norm=False, score_scale=8.0, dataset=COLOUR, seed=0
    )
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(scaled(images), 8 * plain(images))
