"""What the tests of training share: a small network, real digits, a loop, and a dense oracle."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from seeds import seeded
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import FoundLayer, find_layers
from spectralclip.demo import load_digits

IMAGES, LABELS = (part[:640] for part in load_digits())
IMAGES = IMAGES[:, :, ::3, ::3].contiguous()
EXAMPLE = IMAGES[:2]


def small_network(seed: int = 0) -> nn.Sequential:
    """Convolutions with three paddings, two of them with batch norm, and a dense layer."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="reflect", bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6 * 5 * 5, 10),
        )


def batch(index: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """The same batch for the same step of every run."""
    first = size * index % len(IMAGES)
    return IMAGES[first : first + size], LABELS[first : first + size]


def loss_of(model: nn.Module, index: int, size: int = 16) -> Tensor:
    images, labels = batch(index, size)
    return nn.functional.cross_entropy(model(images), labels)


def train(model: nn.Module, optimizer: Any, steps: int, first: int = 0) -> None:
    """A training loop as users write it."""
    for index in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, index).backward()
        optimizer.step()


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def true_norms(attachment: Any) -> dict[str, float]:
    """Of the layers of an attachment, at the largest over their input shapes."""
    return {
        name: max(dense_norm(layer.modules, shape) for shape in layer.in_shapes)
        for name, layer in attachment.layers.items()
    }


def layers_of(model: nn.Module, shape: tuple[int, ...]) -> dict[str, FoundLayer]:
    return find_layers(model, torch.zeros(1, *shape), "none")


def tower(layers: int = 20) -> nn.Sequential:
    torch.manual_seed(2)
    sizes = [(6 + 7 * n % 11, 6 + 7 * (n + 1) % 11) for n in range(layers)]
    parts: list[nn.Module] = []
    for a, b in sizes:
        parts += [nn.Conv2d(a, b, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*parts)


def tensors_of(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries, lists and tuples."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from tensors_of(value, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from tensors_of(value, f"{path}/{index}")
    else:
        yield path, state


def assert_identical(first: Any, second: Any) -> None:
    """The same structure with the same content, bit for bit."""
    ours, theirs = dict(tensors_of(first)), dict(tensors_of(second))
    assert list(ours) == list(theirs)
    for path, value in ours.items():
        other = theirs[path]
        if isinstance(value, Tensor):
            assert value.dtype == other.dtype, path
            assert torch.equal(value, other), path
        else:
            assert value == other, path


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())
