"""Programs put together at random from the table of operations, views and writes in place."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import operation_draws_affine
import operation_draws_bent
import operation_draws_products
import torch
from operation_draws import DRAWERS, FUNCTIONS, Call, aten, draw_call
from torch import Tensor, nn

assert operation_draws_affine and operation_draws_bent and operation_draws_products

INPUT, MOST, STEPS = 6, 48, 5  # entries of the input and of a value, and operations
# Those that round to single precision would drown differences, and random ones are no functions.
LEFT_OUT = {"_to_copy", "native_dropout", "rrelu_with_noise"}
NAMES = sorted(set(DRAWERS) - LEFT_OUT)
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
Step = Callable[[list[Tensor]], Tensor]


def fit(x: Tensor, shape: tuple[int, ...], start: int) -> Tensor:
    """A value in another shape: a part of it where it is large, repeated where it is small."""
    count, flat = math.prod(shape), x.flatten()
    if flat.numel() < count:
        flat = flat.repeat(-(-count // max(1, flat.numel())))
    start = start % (flat.numel() - count + 1)
    return flat[start : start + count].reshape(shape)


def _call(rng: random.Random) -> tuple[Call, int, int] | None:
    call = draw_call(rng.choice(NAMES), rng.randrange(1000))
    return None if call is None else (call, rng.randrange(100), rng.randrange(8))


def out_of_place(rng: random.Random, count: int) -> Step | None:
    """A call whose input is a value, or two values side by side."""
    drawn, first, second = _call(rng), rng.randrange(count), rng.randrange(count)
    if drawn is None:
        return None
    call, start, item = drawn
    alone = rng.random() < 0.6

    def step(values: list[Tensor]) -> Tensor:
        a, b = values[first], values[second]
        x = a if alone else torch.cat([a.flatten(), b.flatten()])
        made = call(fit(x, call.shape, start))
        return made[item % len(made)]

    return step


def in_place(rng: random.Random, count: int) -> Step | None:
    """The form of a call that works in place, on a part of a value or of its copy."""
    drawn, first, copies = _call(rng), rng.randrange(count), rng.random() < 0.5
    if drawn is None or drawn[0].name in FUNCTIONS:
        return None
    call, start, _ = drawn
    packet = getattr(aten, f"{call.name}_", None)
    if packet is None:
        return None
    form = getattr(packet, call.function._overloadname, None)

    def step(values: list[Tensor]) -> Tensor:
        whole = values[first].clone() if copies else values[first]
        x = fit(whole, call.shape, start)
        args, kwargs = call.build(x)
        if args[0].untyped_storage()._cdata != x.untyped_storage()._cdata:
            raise RuntimeError("a program that changes its own constants is no function")
        shape = args[0].shape
        made: Tensor = form(*args, **kwargs)
        if made.shape != shape:
            raise RuntimeError("torch warns each time that it enlarges what it writes into")
        return whole if copies or made.numel() == 0 else made

    return step if form is not None else None


VIEWS: list[Callable[[Tensor, int], Tensor]] = [
    lambda y, n: y[n % max(1, len(y)) :],
    lambda y, n: y[:: 1 + n % 3],
    lambda y, n: y.t() if y.ndim == 2 else y.view(-1, 2),
    lambda y, n: y.as_strided((2, 2), (1 + n % 2, 1), n % 3),
    lambda y, n: y.as_strided((3,), (n % 2,), n % 4),
    lambda y, n: y.unfold(0, 2, 1 + n % 2),
    lambda y, n: y[: 1 + n % 3].expand(2, *y[: 1 + n % 3].shape),
    lambda y, n: y.detach(),
]
WRITES: list[Callable[[Tensor, Tensor, float], Any]] = [
    lambda v, b, a: v.mul_(a),
    lambda v, b, a: v.add_(b, alpha=a),
    lambda v, b, a: v.copy_(b),
    lambda v, b, a: v.tanh_(),
    lambda v, b, a: v.relu_(),
    lambda v, b, a: v.fill_(a),
    lambda v, b, a: v.clamp_(min=b),
    lambda v, b, a: v.zero_(),
    lambda v, b, a: v.sub_(a).neg_(),
    lambda v, b, a: v.lerp_(b, a),
]


def through_a_view(rng: random.Random, count: int) -> Step:
    """Write through a view into a value, and return the value, the view or a view of it."""
    first, second, number = rng.randrange(count), rng.randrange(count), rng.randrange(12)
    view, again, write = rng.choice(VIEWS), rng.choice(VIEWS), rng.choice(WRITES)
    factor, which = rng.choice([-2.0, 0.5, 3.0]), rng.randrange(4)

    def step(values: list[Tensor]) -> Tensor:
        whole, other = values[first], values[second]
        seen = view(whole, number)
        if which:
            write(seen, fit(other.clone(), tuple(seen.shape), number), factor)
        return (seen, whole, again(seen, number), again(whole, number))[which]

    return step


KINDS = (out_of_place, out_of_place, in_place, through_a_view)


class Program(nn.Module):
    """Steps that each make a value out of earlier ones, or change them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.steps: list[Step] = []
        example = torch.randn(1, INPUT, generator=torch.Generator().manual_seed(seed)).double()
        while len(self.steps) < STEPS:
            step = rng.choice(KINDS)(rng, len(self.steps) + 1)
            if step is not None and self._goes(example, step):
                self.steps.append(step)

    def _goes(self, example: Tensor, step: Step) -> bool:
        """Whether a step may come next."""
        try:
            values = self._values(example)
            made = step(values)
        except _ERRORS:
            return False
        sizes = [value.numel() for value in (made, *values)]
        finite = all(bool(value.isfinite().all()) for value in (made, *values))
        return made.dtype == torch.float64 and min(sizes) > 0 and max(sizes) <= MOST and finite

    def _values(self, x: Tensor) -> list[Tensor]:
        values = [x[0].clone()]
        for step in self.steps:
            values.append(step(values))
        return values

    def forward(self, x: Tensor) -> Tensor:
        values = self._values(x)
        return torch.cat([value.flatten() for value in values[-2:]])[None]
