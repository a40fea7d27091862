"""A small network, and steps on it that show what an optimizer and its momentum do."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from seeds import seeded
from torch import Tensor, nn, optim

from oracle import dense_norm
from spectralclip import Attachment, NormWarning, attach, clip_model_
from spectralclip.methods import SpectralClip

X = torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(0))


Y = torch.randint(5, (64,), generator=torch.Generator().manual_seed(1))


SHAPES = {"0": (3, 6, 6), "2": (4, 6, 6), "5": (36,)}


Make = Callable[[Iterable[Tensor]], optim.Optimizer]


@functools.cache
def clipped_network(clipped: bool) -> nn.Sequential:
    with seeded(0):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 5),
        )
    for parameter in model.parameters():
        parameter.data *= 3
    if clipped:
        clip_model_(model, X[:1], max_norm=0.99)
    return model


def network(clipped: bool = True) -> nn.Sequential:
    """Two convolutions and a dense layer, within a bound of 1 if they are to be."""
    return copy.deepcopy(clipped_network(clipped))


def backward(model: nn.Module, step: int, scale: float = 30.0) -> Tensor:
    batch = torch.arange(16) + 16 * (step % 4)
    loss = scale * nn.functional.cross_entropy(model(X[batch]), Y[batch])
    loss.backward(create_graph=False)
    return loss


def largest_change(model: nn.Module, optimizer: Any, steps: int) -> float:
    """The longest change of a weight in a step, and with it all that came after the step."""
    largest = 0.0
    for step in range(steps):
        before = [parameter.detach().clone() for parameter in model.parameters()]

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            return backward(model, step)

        closure()
        optimizer.step(closure)
        changes = (
            (p.detach() - old).norm() for p, old in zip(model.parameters(), before, strict=True)
        )
        largest = max(largest, *map(float, changes))
    return largest


def norms_of(model: nn.Sequential) -> dict[str, float]:
    return {name: dense_norm([model[int(name)]], shape) for name, shape in SHAPES.items()}


def quietly_attached(model: nn.Module, optimizer: Any, **settings: Any) -> Attachment:
    """Attached, with nothing but a word about a momentum that is left alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The momentum of", NormWarning)
        return attach(model, optimizer, X[:1], method=SpectralClip(), **settings)
