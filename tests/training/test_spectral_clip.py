"""SpectralClip holds every kind of layer within its bound, and leaves alone what is within it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cases import LowRank, ScaledConv
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from training_cases import assert_identical, snapshot, true_norms

from oracle import dense_norm
from spectralclip import NormWarning, attach, find_layers, methods
from spectralclip._training.engine.build import stages_of
from spectralclip._training.engine.factors import Factors
from spectralclip._training.engine.group import Group
from spectralclip._training.engine.matrices import Matrices
from spectralclip._training.engine.modes import Modes
from spectralclip._training.engine.vectors import Vectors
from spectralclip.demo import load_digits
from spectralclip.methods import SpectralClip


@dataclass(frozen=True)
class Kind:
    """A layer, how it should be kept, and by how much its norm may be above the bound."""

    make: Callable[[], nn.Module]
    in_shape: tuple[int, ...]
    way: tuple[type[Group], ...]
    excess: float = 0.01
    compose: Any = "none"


def conv(*args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*args, **kwargs)


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))


def weight_normed() -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(3, 4, 3, padding=1))


KINDS = {
    "linear": Kind(lambda: nn.Linear(12, 9), (12,), (Matrices,)),
    "1x1": Kind(conv(5, 6, 1), (5, 4, 4), (Matrices,)),
    "patches": Kind(conv(3, 8, 4, stride=4), (3, 8, 8), (Matrices,)),
    "zeros": Kind(conv(3, 4, 3, padding=1), (3, 8, 8), (Modes,)),
    "zeros-stride": Kind(conv(3, 6, 3, stride=2, padding=1), (3, 9, 8), (Modes,)),
    "circular": Kind(conv(3, 4, 3, padding=1, padding_mode="circular"), (3, 6, 6), (Modes,)),
    "circular-uneven": Kind(
        conv(3, 4, 3, stride=2, padding=1, padding_mode="circular"),
        (3, 7, 7),
        (Modes, Vectors),
        0.03,
    ),
    "reflect": Kind(
        conv(3, 4, 3, padding=1, padding_mode="reflect"), (3, 7, 7), (Modes, Vectors), 0.03
    ),
    "replicate": Kind(
        conv(3, 4, 3, padding=1, padding_mode="replicate"), (3, 7, 7), (Modes, Vectors), 0.03
    ),
    "transposed": Kind(
        lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1), (4, 5, 5), (Modes,)
    ),
    "depthwise": Kind(conv(4, 4, 3, padding=1, groups=4), (4, 7, 7), (Modes,)),
    "grouped": Kind(conv(4, 6, 3, padding=1, groups=2), (4, 7, 7), (Modes,)),
    "dilated": Kind(conv(3, 4, 3, padding=2, dilation=2), (3, 8, 8), (Modes,)),
    "1d": Kind(lambda: nn.Conv1d(3, 5, 5, padding=2), (3, 16), (Modes,)),
    "3d": Kind(lambda: nn.Conv3d(2, 3, 3, padding=1), (2, 4, 5, 4), (Modes,)),
    "custom": Kind(lambda: LowRank(8, 3, 6), (8,), (Vectors,), 0.03),
    "inside-another": Kind(ScaledConv, (2, 6, 6), (Modes,)),
    "weight-norm": Kind(weight_normed, (3, 6, 6), (Vectors,), 0.03),
    "composed": Kind(with_batch_norm, (3, 6, 6), (Modes,), 0.03, "conv_bn"),
    "large-linear": Kind(lambda: nn.Linear(530, 520), (530,), (Matrices,)),
}
EACH = pytest.mark.parametrize("name", KINDS)


def built(name: str) -> nn.Sequential:
    """The layer alone in a model, from a seed of its own."""
    with seeded(len(name)):
        return nn.Sequential(KINDS[name].make())


def examples(name: str, count: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *KINDS[name].in_shape, generator=generator)


def groups(model: nn.Module, x: Tensor, method: SpectralClip) -> list[Group]:
    found = find_layers(model, x, method.compose)
    layers = {name: layer for name, layer in found.items() if method.takes(layer)}
    return [group for stage in stages_of(layers, 0.01, 2, 0) for group in stage.groups]


def adversarial(model: nn.Module, x: Tensor, optimizer: Any, steps: int, watch: Any) -> None:
    """Make the outputs as large as possible, which is what a bound on the norm stands against.

    Gradients are of one length, whatever the layer, so that it grows by some percent in a step.
    """
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        outputs = model(x)
        (-(outputs * outputs.detach().sign()).sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.04)
        optimizer.step()
        watch(step)


@EACH
def test_each_layer_is_kept_the_way_that_suits_it(name: str) -> None:
    kind = KINDS[name]
    found = groups(built(name), examples(name), SpectralClip(compose=kind.compose))
    assert tuple(map(type, found)) == kind.way


def test_batch_norms_are_clamped_if_asked_for() -> None:
    model, x = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)), torch.randn(4, 3, 5, 5)
    kinds = {type(group) for group in groups(model, x, SpectralClip(batch_norm=True))}
    assert kinds == {Factors, Matrices}
    assert [type(group) for group in groups(model, x, SpectralClip())] == [Matrices]


@pytest.mark.sampled(4)
@EACH
def test_training_that_pushes_outward_is_held(name: str) -> None:
    kind, x = KINDS[name], examples(name)
    model = built(name)
    method = SpectralClip(compose=kind.compose)
    large = name == "large-linear"
    norms: list[float] = []

    def run(model: nn.Module, attached: bool) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        attachment = attach(model, optimizer, x, method=method, max_norm=0.8)

        def watch(step: int) -> None:
            if attached and step >= 4 and step % (10 if large else 3) == 0:
                norms.extend(true_norms(attachment).values())

        if not attached:
            attachment.remove()
        adversarial(model, x, optimizer, 60, watch)
        return max(true_norms(attachment).values())

    free = copy.deepcopy(model)
    assert run(free, attached=False) > 1.2, "nothing would have grown"
    run(model, attached=True)
    assert max(norms) <= 0.8 * (1 + kind.excess)
    # And not by making it much smaller than it has to be.
    assert norms[-1] >= 0.8 * 0.8


@pytest.mark.parametrize("name", ["linear", "zeros", "reflect", "custom", "grouped"])
def test_a_layer_that_grows_from_far_below_is_let_up_to_its_bound(name: str) -> None:
    """Nothing that was seen on the way calls for more caution."""
    x, model = examples(name), built(name)
    attachment = attach(model, None, x, method=SpectralClip(), max_norm=1.0)
    (layer,) = attachment.layers.values()
    start = dense_norm(layer.modules, layer.in_shapes[0])
    weights = [p for p in model.parameters() if p.ndim > 1]
    with torch.no_grad():
        for weight in weights:
            weight.mul_((0.2 / start) ** (1 / len(weights)))
        for _ in range(80):
            for weight in weights:
                weight.mul_(1.03 ** (1 / len(weights)))
            attachment.step()
    assert 0.94 <= dense_norm(layer.modules, layer.in_shapes[0]) <= 1.01


@EACH
def test_a_layer_within_its_bound_stays_bit_for_bit(name: str) -> None:
    kind, x = KINDS[name], examples(name)
    states = []
    for attached in (False, True):
        model = built(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        attachment = attach(
            model, optimizer, x, method=SpectralClip(compose=kind.compose), max_norm=1e3
        )
        if not attached:
            attachment.remove()
        adversarial(model, x, optimizer, 5, lambda step: None)
        states.append((snapshot(model), copy.deepcopy(optimizer.state_dict()["state"])))
    assert_identical(states[0], states[1])


@pytest.mark.parametrize("name", ["linear", "zeros", "reflect", "grouped", "composed"])
def test_norms_are_known_and_close_to_the_truth(name: str) -> None:
    kind, x = KINDS[name], examples(name)
    model = built(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attachment = attach(
        model, optimizer, x, method=SpectralClip(compose=kind.compose), max_norm=0.8
    )
    adversarial(model, x, optimizer, 20, lambda step: None)
    for layer, norm in true_norms(attachment).items():
        assert attachment.norms()[layer] == pytest.approx(norm, rel=0.08)


@pytest.mark.parametrize("name", ["linear", "zeros", "reflect", "grouped"])
def test_half_precision_is_held(name: str) -> None:
    x = examples(name).bfloat16()
    model = built(name).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attachment = attach(model, optimizer, x, method=SpectralClip(), max_norm=0.8)
    norms = []
    adversarial(
        model, x, optimizer, 20, lambda step: norms.append(max(true_norms(attachment).values()))
    )
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    # Rounding to eight bits moves the norm by itself.
    assert max(norms[4:]) <= 0.8 * 1.03
    assert norms[-1] >= 0.8 * 0.8


def test_layers_of_equal_shape_are_followed_together_and_as_if_alone() -> None:
    x = torch.randn(4, 3, 7, 7)

    def convs() -> nn.Sequential:
        with seeded(3):
            return nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(3)])

    model = convs()
    (group,) = groups(model, x, SpectralClip())
    assert group.names == ("0", "1", "2")
    together, alone = convs(), convs()
    attachments = [attach(together, None, x, method=SpectralClip(), max_norm=0.7)]
    attachments += [
        attach(alone, None, x, method=SpectralClip(), max_norm={n: 0.7}) for n in ("0", "1", "2")
    ]
    generator = torch.Generator().manual_seed(4)
    for _ in range(4):
        for one, other in zip(together.parameters(), alone.parameters(), strict=True):
            noise = 0.02 * torch.randn(one.shape, generator=generator)
            with torch.no_grad():
                one.add_(noise)
                other.add_(noise)
        for attachment in attachments:
            attachment.step()
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_other_strides_and_paddings_are_followed_apart_and_other_sizes_together() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 3, 3, padding=1),
        nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 3, 3, padding=1, stride=2),
        nn.Conv2d(3, 3, 3, padding=1),
    )
    found = groups(model, torch.randn(1, 3, 32, 32), SpectralClip())
    names = [(type(group), group.names) for group in found]
    assert names == [(Modes, ("0", "1", "3")), (Modes, ("2",)), (Vectors, ("1",))]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"headroom": -0.1}, "headroom must be at least 0"),
        ({"headroom": 0.5}, "below 0.5, got 0.5"),
        ({"headroom": float("nan")}, "headroom"),
        ({"compose": "all"}, "compose must be 'none', 'conv_bn' or 'heads', got 'all'"),
        ({"headroom": "x"}, "headroom must be at least 0"),
        ({"check_every": -1}, "check_every must be a whole number of at least 0, got -1"),
        ({"check_every": 1.5}, "check_every must be a whole number of at least 0, got 1.5"),
        ({"vectors": 0}, "vectors must be a whole number of at least 1, got 0"),
        ({"vectors": True}, "vectors must be a whole number of at least 1, got True"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpectralClip(**settings)


@pytest.mark.parametrize("name", ["linear", "zeros", "reflect", "custom"])
def test_a_layer_that_is_lost_is_said_once_and_taken_up_again(name: str) -> None:
    x, model = examples(name), built(name)
    attachment = attach(model, None, x, method=SpectralClip(), max_norm=0.3)
    attachment.step()
    saved = snapshot(model)
    weight = next(p for p in model.parameters() if p.ndim > 1)
    with torch.no_grad():
        weight.view(-1)[0] = torch.nan
    with pytest.warns(NormWarning, match="NaN or infinite") as caught:
        attachment.step()
        attachment.step()
    assert len(caught) == 1
    model.load_state_dict(saved)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    for _ in range(3):
        attachment.step()
    layer = next(iter(attachment.layers.values()))
    assert dense_norm(layer.modules, layer.in_shapes[0]) <= 0.3 * 1.03


def test_momentum_is_projected_unless_told_otherwise() -> None:
    buffers = []
    for project in (True, False):
        model, x = built("linear"), examples("linear")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = SpectralClip(project_momentum=project)
        with attach(model, optimizer, x, method=method, max_norm=0.3):
            adversarial(model, x, optimizer, 5, lambda step: None)
        weight = model[0].weight
        u, _, v = torch.linalg.svd(weight.detach(), full_matrices=False)
        buffers.append(float(u[:, 0] @ optimizer.state[weight]["momentum_buffer"] @ v[0]))
    # The weight moves by minus the momentum: what is negative pushes outward.
    assert buffers[0] > buffers[1]
    assert buffers[1] < -1e-3


# --- Real training --------------------------------------------------------------------------


def digits_network() -> nn.Sequential:
    with seeded(5):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, padding_mode="reflect"),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 5 * 5, 10),
        )


def smaller(images: Tensor) -> Tensor:
    """Means of 3 x 3 pixels, at a scale at which a network of small norm can tell them apart."""
    return nn.functional.avg_pool2d(images, 3) * 60


def accuracy(model: nn.Module) -> float:
    images, labels = load_digits("test")
    with torch.no_grad():
        return float((model(smaller(images)).argmax(1) == labels).double().mean())


def trained(make: Any, *, clipped: bool) -> tuple[nn.Module, Any, list[float]]:
    images, labels = load_digits()
    images, model, norms = smaller(images), digits_network(), list[float]()
    optimizer = make(model.parameters())
    attachment = attach(model, optimizer, images[:2], method=SpectralClip())
    if not clipped:
        attachment.remove()
    order = torch.Generator().manual_seed(6)
    for step in range(250):
        chosen = torch.randint(len(images), (64,), generator=order)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        if clipped and step % 5 == 0 and step > 0:
            norms.append(max(true_norms(attachment).values()))
    return model, attachment, norms


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=3e-3),
    ],
    ids=["sgd", "adam"],
)
def test_digits_are_learnt_within_the_bound(make: Any) -> None:
    free, unbounded, _ = trained(make, clipped=False)
    assert max(true_norms(unbounded).values()) > 1.3, "nothing would have grown"
    model, attachment, norms = trained(make, clipped=True)
    # One of the layers has a reflected border.
    assert max(norms) <= 1.03
    assert sum(norm <= 1.01 for norm in norms) >= 0.9 * len(norms)
    reached = accuracy(model)
    assert reached >= accuracy(free) - 0.03
    attachment.finalize()
    assert max(true_norms(attachment).values()) <= 1.001
    assert abs(accuracy(model) - reached) < 0.005


def test_it_is_the_method_of_the_registry() -> None:
    assert methods.SpectralClip is SpectralClip
