"""What every method is asked: how it is made and written, and how it stands beside a training.

`test_methods_common.py` asks all methods of `methods.available()`; a new one is covered as soon as
it has a name. Oracles are dense matrices in float64.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import nn
from untouched import surroundings
from zoo_training import Trainee

from oracle import dense_norm, kernel_norm
from spectralclip import Attachment, Method, attach
from spectralclip._training import Promise
from spectralclip.methods import get

LONGEST_FILE = 220
# What a docstring has to tell, and words of which one has to stand there.
TOLD = {
    "citation": ("et al", " and ", "paper", "ours"),
    "domain": ("domain", "takes", "defined for", "left alone"),
    "promise": ("promise", "guarante"),
    "cost": ("cost",),
    "failure": ("fail", "wrong", "does not hold", "hinder", "breaks"),
}


# --- How it is written ----------------------------------------------------------------------


def untold(method: type[Method]) -> list[str]:
    """What the docstring of a method leaves out; examples and arguments are not read."""
    text = inspect.getdoc(method) or ""
    prose = text.partition("Args:")[0].partition("Example:")[0].lower()
    missing = [what for what, words in TOLD.items() if not any(word in prose for word in words)]
    return missing if "Example:" in text else [*missing, "example"]


def lines_of(method: type[Method]) -> int:
    """How long the method's file is."""
    return len(Path(inspect.getfile(method)).read_text("utf-8").splitlines())


# --- Beside a training ----------------------------------------------------------------------


@dataclass
class Run:
    """A network in training, with a method attached in the usual way."""

    trainee: Trainee
    model: nn.Module
    optimizer: torch.optim.Optimizer
    attachment: Attachment

    def train(self, steps: int, first: int = 0) -> None:
        """A loop as users write it."""
        for index in range(first, first + steps):
            images, labels = self.trainee.batch(index)
            images = images.to(next(self.model.parameters()).dtype)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            (loss + self.attachment.penalty()).backward()
            self.optimizer.step()

    def states(self) -> list[Any]:
        """All that a checkpoint holds."""
        return [part.state_dict() for part in (self.model, self.optimizer, self.attachment)]

    def load(self, states: list[Any]) -> None:
        for part, state in zip((self.model, self.optimizer, self.attachment), states, strict=True):
            part.load_state_dict(state)

    def taken(self) -> set[str]:
        """The layers that the method takes care of."""
        return set(self.attachment.layers)


@contextmanager
def packages_needed() -> Iterator[None]:
    """Some methods are built on packages that need not be installed."""
    try:
        yield
    except ImportError as error:
        pytest.skip(str(error))


def begun(
    name: str,
    trainee: Trainee,
    *,
    lr: float = 0.02,
    dtype: torch.dtype = torch.float32,
    frozen: str = "",
    adam: bool = False,
) -> Run:
    """A new run: the optimizer knows the parameters before the method comes.

    Raises:
        ValueError: The method has nothing to do on this network.
    """
    model = trainee.model().to(dtype)
    for parameter_name, parameter in model.named_parameters():
        if frozen and parameter_name.startswith(frozen):
            parameter.requires_grad_(False)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if adam:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=True)
    example = trainee.batch(0, 2)[0].to(dtype)
    with packages_needed():
        attachment = attach(model, optimizer, example, method=get(name)(), max_norm=0.7, seed=4)
    return Run(trainee, model, optimizer, attachment)


def through_a_file(content: Any) -> Any:
    """As it comes back from a checkpoint that is read without trust."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def outside() -> dict[str, Any]:
    """The global state that nobody may touch: random numbers, modes, threads."""
    return surroundings()


def plainness(model: nn.Module) -> list[tuple[str, type, list[str], int]]:
    """What a bare model is made of: names, types, parameters and buffers, and hooks."""
    return [
        (
            name,
            type(module),
            [*module._parameters, *module._buffers],
            len(module._forward_hooks) + len(module._forward_pre_hooks),
        )
        for name, module in model.named_modules()
    ]


# --- The promise ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Single:
    """One layer alone, whose norm is too large."""

    name: str
    module: nn.Module
    in_shape: tuple[int, ...]


def single(name: str) -> Single:
    """One of `SINGLES`, made from a seed, with three times the norm that it may have."""
    make, in_shape = SINGLES[name]
    with seeded(11), torch.no_grad():
        module = make()
        module.weight.mul_(3 / dense_norm([module], in_shape))
    return Single(name, module, in_shape)


def _conv(mode: str = "zeros", **options: Any) -> Any:
    usual = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "padding": 1}
    return lambda: nn.Conv2d(**{**usual, **options}, padding_mode=mode)


SINGLES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda: nn.Linear(8, 6), (8,)),
    "zeros": (_conv(), (4, 6, 6)),
    "circular": (_conv("circular"), (4, 6, 6)),
    "circular-wide": (_conv("circular", padding=2), (4, 6, 6)),
    "reflect": (_conv("reflect"), (4, 6, 6)),
    "replicate": (_conv("replicate"), (4, 6, 6)),
    "stride": (_conv(stride=2), (4, 6, 6)),
    "circular-stride": (_conv("circular", stride=2), (4, 6, 6)),
    "wider": (_conv(kernel_size=5, padding=2, out_channels=2), (4, 6, 6)),
    "pointwise": (_conv(kernel_size=1, padding=0, out_channels=6), (4, 6, 6)),
    "groups": (_conv(groups=2), (4, 6, 6)),
    "dilation": (_conv(dilation=2, padding=2), (4, 6, 6)),
    "batch-norm": (lambda: nn.BatchNorm2d(4), (4, 6, 6)),
}


def norm_reached(method: Method, layer: Single, promise: Promise, bound: float = 1.0) -> float:
    """What the promise speaks of, after so many steps that hardly move the layer.

    Raises:
        ValueError: The method does not take the layer.
    """
    model = nn.Sequential(layer.module).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(8, *layer.in_shape, generator=generator)
    with packages_needed():
        attachment = attach(model, optimizer, inputs[:2], method=method, max_norm=bound, seed=2)
    for _ in range(promise.steps):
        optimizer.zero_grad()
        (model(inputs).square().mean() + attachment.penalty()).backward()
        optimizer.step()
    attachment.remove()
    kept = model[0]
    if promise.of == "kernel":
        return kernel_norm(kept)
    return dense_norm([kept], layer.in_shape)
