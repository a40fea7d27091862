"""Calls of each operation that the network bound accepts, with arguments drawn at random.

A draw says of which shape the input is, and how the arguments of the operation are made of it.
Indices repeat, windows overlap, scales are negative, broadcasting goes either way, and arguments
that one rarely sees are drawn as often as the others. Some draws are outside of what has a bound.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]
Build = Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]
aten = torch.ops.aten
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pad": F.pad,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "normalize": F.normalize,
    "rms_norm": F.rms_norm,
}
"""Entries of the table that are functions of torch, not operations."""


@dataclass(frozen=True)
class Call:
    """A call of an operation, of which the arguments follow from one input."""

    name: str
    shape: Shape
    build: Build
    function: Callable[..., Any]

    def __call__(self, x: Tensor, outputs: tuple[int, ...] | None = None) -> list[Tensor]:
        """The results of floating-point numbers, or some of them by their places."""
        args, kwargs = self.build(x.reshape(self.shape))
        made = self.function(*args, **kwargs)
        found = list(made) if isinstance(made, (tuple, list)) else [made]
        found = found if outputs is None else [found[place] for place in outputs]
        return [y for y in found if isinstance(y, Tensor) and y.is_floating_point()]


class Draw:
    """Numbers, shapes and tensors at random, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def sizes(self, least: int = 1, most: int = 3, top: int = 3) -> Shape:
        return tuple(self.rng.randint(1, top) for _ in range(self.rng.randint(least, most)))

    def real(self) -> float:
        return self.rng.choice([0.0, 1.0, -1.0, 0.3, -2.5, 3.0, 0.05, -0.7])

    def flag(self) -> bool:
        return self.rng.random() < 0.5

    def one(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def whole(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def dim(self, shape: Shape) -> int:
        return self.rng.randrange(-len(shape), len(shape))

    def dims(self, shape: Shape) -> list[int]:
        count = self.rng.randint(1, len(shape))
        return [d - self.rng.choice([0, len(shape)]) for d in self._sample(len(shape), count)]

    def _sample(self, size: int, count: int) -> list[int]:
        return self.rng.sample(range(size), count)

    def order(self, count: int) -> list[int]:
        return self._sample(count, count)

    def tensor(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def index(self, high: int, *shape: int) -> Tensor:
        """Indices, which repeat more often than not."""
        top = self.rng.choice([1, high, high])
        return torch.randint(0, top, shape, generator=self._generator)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator) < 0.6

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that goes with another one: smaller here, larger there."""
        sizes = [
            self.rng.choice([1, n]) if n > 1 else self.rng.choice([1, 1, 3])
            for n in shape[self.rng.randrange(len(shape) + 1) :]
        ]
        whole = len(sizes) == len(shape) and self.flag()
        return (2, *sizes) if whole else tuple(sizes)


Drawer = Callable[[Draw], tuple[Shape, Build]]
DRAWERS: dict[str, list[Drawer]] = {}


def draws(*names: str) -> Callable[[Callable[..., tuple[Shape, Build]]], Any]:
    """Register what draws calls of some operations; it may ask for the name."""

    def register(drawer: Callable[..., tuple[Shape, Build]]) -> Any:
        takes_name = drawer.__code__.co_argcount > 1
        for name in names:
            own = (lambda d, name=name: drawer(d, name)) if takes_name else drawer
            DRAWERS.setdefault(name, []).append(own)
        return drawer

    return register


def draw_call(name: str, seed: int) -> Call | None:
    """A call of an operation, by a seed; None where torch does not take the arguments."""
    drawers = DRAWERS[name]
    shape, build = drawers[seed % len(drawers)](Draw(seed))
    return resolved(name, shape, build)


def resolved(name: str, shape: Shape, build: Build) -> Call | None:
    """The call of the one of an operation's forms that takes these arguments.

    Torch would look for it anew at each call, which takes longer than the operation.
    """
    forms: list[Callable[..., Any]] = [FUNCTIONS[name]] if name in FUNCTIONS else []
    if not forms:
        packet = getattr(aten, name)
        names = [form for form in packet.overloads() if not form.endswith("out")]
        forms = [getattr(packet, form) for form in names]
    for form in forms:
        args, kwargs = build(torch.randn(shape, dtype=torch.float64))
        try:
            form(*args, **kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue
        return Call(name, shape, build, form)
    return None


def fixed(*args: Any, **kwargs: Any) -> Build:
    """The input first, and then these arguments."""
    return lambda x: ((x, *args), kwargs)


def halves(x: Tensor, first: Shape) -> tuple[Tensor, Tensor]:
    """A flat input in two parts, the first of which has a shape."""
    count = torch.Size(first).numel()
    flat = x.flatten()
    return flat[:count].reshape(first), flat[count:]
