"""The bound after every step, the first included, against a float64 oracle, whatever trains.

The tests look at weights alone, so that they judge any way of holding norms.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn, optim
from training_cases import true_norms

from oracle import dense_norm
from spectralclip import Attachment, NormEstimate, NormWarning, attach
from spectralclip.methods import SpectralClip

PADDINGS = ("zeros", "circular", "reflect", "replicate")
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], optim.Optimizer]] = {
    "RMSprop": optim.RMSprop,
    "Adagrad": optim.Adagrad,
    "Adam 0.1": lambda p: optim.Adam(p, lr=0.1),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adamax": lambda p: optim.Adamax(p, lr=0.02),
    "Rprop": optim.Rprop,
}
left_alone = pytest.mark.filterwarnings("ignore:The momentum of Adamax")


def network(padding: str, seed: int) -> nn.Sequential:
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, padding_mode=padding),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, padding_mode=padding),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, stride=2, padding=1, padding_mode=padding),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(54, 10),
        )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_held(attachment: Attachment, bound: float, where: object) -> None:
    for name, norm in true_norms(attachment).items():
        assert norm <= 1.02 * bound, (name, where)
        assert norm <= 1.1 * attachment.norms()[name], (name, where)


def train(padding: str, name: str, steps: int, bound: float = 1.0, seed: int = 0) -> None:
    model, draw = network(padding, seed), generator(seed)
    optimizer = OPTIMIZERS[name](model.parameters())
    inputs = torch.randn(64, 3, 6, 6, generator=draw)
    labels = torch.randint(10, (64,), generator=draw)
    attachment = attach(model, optimizer, inputs[:1], method=SpectralClip(), max_norm=bound)
    for step in range(steps):
        batch = torch.randint(64, (16,), generator=draw)
        optimizer.zero_grad()
        scores = 10 * model(inputs[batch]) / bound
        nn.functional.cross_entropy(scores, labels[batch]).backward()
        optimizer.step()
        assert_held(attachment, bound, (padding, name, step, seed))


@pytest.mark.parametrize(("padding", "name"), [("reflect", "RMSprop"), ("replicate", "Adam 0.1")])
def test_short_trainings_are_held_at_every_step(padding: str, name: str) -> None:
    train(padding, name, steps=6)


@pytest.mark.slow
@left_alone
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("padding", "name"), list(itertools.product(PADDINGS, OPTIMIZERS)))
def test_trainings_are_held_at_every_step(padding: str, name: str, seed: int) -> None:
    train(padding, name, steps=40, seed=seed)


@pytest.mark.parametrize("padding", ["zeros", "replicate"])
def test_a_small_bound_is_held_from_the_first_step_on(padding: str) -> None:
    train(padding, "Adam", steps=2, bound=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("padding", PADDINGS)
def test_weights_that_walk_or_are_replaced_are_held(padding: str) -> None:
    """Whatever moves them: the optimizer is not asked."""
    model, draw = network(padding, 0), generator(0)
    attachment = attach(model, None, torch.zeros(1, 3, 6, 6), method=SpectralClip())
    for step in range(60):
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=draw)
                if step % 10 == 9:
                    parameter.copy_(0.3 * noise)
                else:
                    parameter.add_(0.03 * noise)
        attachment.step()
        assert_held(attachment, 1.0, (padding, step))


# --- Spikes ----------------------------------------------------------------------------------


class Own(nn.Module):
    """A layer of one's own, of which nothing is known but that it is affine."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12, generator=generator(3)) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flip(-1), self.weight)


LAYERS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "dense": (lambda: [nn.Linear(40, 30)], (40,)),
    "wide": (lambda: [nn.Linear(520, 515)], (520,)),
    "zeros": (lambda: [nn.Conv2d(4, 6, 3, padding=1)], (4, 7, 7)),
    "reflect": (lambda: [nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")], (4, 7, 7)),
    "1x1": (lambda: [nn.Conv2d(6, 5, 1)], (6, 4, 4)),
    "grouped": (lambda: [nn.Conv2d(4, 4, 3, padding=1, groups=2)], (4, 6, 6)),
    "transposed": (lambda: [nn.ConvTranspose2d(4, 3, 3, stride=2)], (4, 5, 5)),
    "conv+BN": (lambda: [nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)], (4, 7, 7)),
    "own": (lambda: [Own()], (12,)),
}
QUICK = [("dense", 1e5), ("dense", 1e8), ("zeros", 1e9), ("reflect", 1e20), ("own", 1e12)]
SIZES = (1e2, 1e5, 1e8, 1e15, 1e25, 1e36)
ALL = [(name, size) for name in LAYERS for size in SIZES]


def spiked(name: str, size: float, spread: bool) -> tuple[nn.Module, Attachment]:
    make, shape = LAYERS[name]
    with seeded(0):
        model = nn.Sequential(*make())
    compose: Any = "conv_bn" if name == "conv+BN" else "none"
    attachment = attach(model, None, torch.zeros(2, *shape), method=SpectralClip(compose=compose))
    for _ in range(2):
        attachment.step()
    weight, draw = model[0].weight, generator(1)
    with torch.no_grad():
        if spread:
            weight.add_(size * torch.randn(weight.shape, generator=draw))
        else:  # of rank one, as a gradient of few images
            left = torch.randn(weight.shape[0], generator=draw)
            right = torch.randn(weight[0].numel(), generator=draw)
            weight.add_(
                size * torch.outer(left / left.norm(), right / right.norm()).view_as(weight)
            )
    attachment.step()
    return model, attachment


def assert_back_within(name: str, size: float, spread: bool) -> None:
    model, attachment = spiked(name, size, spread)
    norm = dense_norm(list(model), LAYERS[name][1])
    assert 0.5 < norm <= 1.02
    (known,) = attachment.norms().values()
    # Fourier modes know the norm on an endless image, which is above that on a small one.
    assert 0.98 * norm <= known <= 1.2 * norm


@pytest.mark.parametrize(("name", "size"), QUICK)
def test_weights_of_any_size_are_back_within_the_bound_at_once(name: str, size: float) -> None:
    assert_back_within(name, size, spread=False)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("name", "size"), ALL)
def test_every_kind_of_layer_is_back_at_once(name: str, size: float, spread: bool) -> None:
    assert_back_within(name, size, spread)


@pytest.mark.parametrize("name", ["dense", "zeros", "reflect"])
def test_only_what_is_not_finite_is_said_to_be(name: str) -> None:
    model, attachment = spiked(name, 1e30, spread=True)
    model[0].weight.data.view(-1)[0] = math.inf
    with pytest.warns(NormWarning, match="NaN or infinite"):
        attachment.step()
    (known,) = attachment.norms().values()
    assert math.isnan(known)


def test_norms_say_where_they_are_from() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(144, 5))
    attachment = attach(model, None, torch.zeros(1, 4, 6, 6), method=SpectralClip())
    for _ in range(7):
        attachment.step()
    norm = attachment.norms()["0"]
    assert isinstance(norm, NormEstimate) and not norm.is_checked and norm.step == 7
    attachment.step()
    norm = attachment.norms()["0"]
    assert norm.is_checked and norm.step == 8
    assert norm == pytest.approx(dense_norm(model[0], (4, 6, 6)), rel=1e-3)
    assert repr(norm).endswith("(checked after step 8)")
    file = io.BytesIO()
    torch.save(attachment.norms(), file)
    file.seek(0)
    assert repr(torch.load(file, weights_only=True)) == repr(attachment.norms())
    restored = attachment.state_dict()
    attachment.load_state_dict(restored)
    assert repr(attachment.norms()["0"]).endswith("(checked after step 8)")
