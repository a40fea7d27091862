"""Draws of products, sums, and of what puts several tensors together."""

from __future__ import annotations

import math
from typing import Any

import torch
from operation_draws import Build, Draw, Shape, draws, fixed, halves
from torch import Tensor


def parted(x: Tensor, *shapes: Shape) -> list[Tensor]:
    """An input in parts of these shapes, as far as it reaches, and then anew."""
    flat, found, start = x.flatten(), list[Tensor](), 0
    for shape in shapes:
        count = math.prod(shape)
        if start + count > flat.numel():
            start = 0
        found.append(flat[start : start + count].reshape(shape))
        start += count
    return found


def some(d: Draw, *shapes: Shape, summand: bool = False) -> tuple[Shape, Any]:
    """One of several arguments from the input, the others constant; with a first summand, both.

    Returns the shape of the input, and the function that makes the arguments of it.
    """
    constants = [d.tensor(*shape) for shape in shapes]
    moved = {d.whole(1 if summand else 0, len(shapes) - 1)}
    if summand and d.flag():
        moved = {0, *moved} if d.flag() else {0}
    total = sum(math.prod(shapes[place]) for place in moved)

    def arguments(x: Tensor) -> list[Tensor]:
        mine = iter(parted(x, *[shapes[place] for place in sorted(moved)]))
        return [next(mine) if place in moved else c for place, c in enumerate(constants)]

    return (total,), arguments


def _call(shape: Shape, arguments: Any, *more: Any, **kwargs: Any) -> tuple[Shape, Build]:
    return shape, lambda x: ((*arguments(x), *more), kwargs)


@draws("mul", "div")
def _mul(d: Draw, name: str) -> tuple[Shape, Build]:
    shape = d.sizes()
    constant: Any = d.one(d.tensor(*d.broadcast(shape)), d.real(), torch.tensor([2, -3, 0])[:1])
    if name == "div" and d.rng.random() < 0.1:
        return shape, fixed(constant, rounding_mode="floor")
    if d.rng.random() < 0.1:
        return shape, lambda x: ((x, x), {})
    if isinstance(constant, Tensor) and name == "mul" and d.flag():
        return shape, lambda x: ((constant, x), {})
    return shape, fixed(constant)


@draws("mm")
def _mm(d: Draw) -> tuple[Shape, Build]:
    return _call(*some(d, (2, 3), (3, 4)))


@draws("bmm")
def _bmm(d: Draw) -> tuple[Shape, Build]:
    return _call(*some(d, (2, 2, 3), (2, 3, 1)))


@draws("mv")
def _mv(d: Draw) -> tuple[Shape, Build]:
    return _call(*some(d, (4, 3), (3,)))


@draws("dot", "vdot")
def _dot(d: Draw) -> tuple[Shape, Build]:
    return _call(*some(d, (5,), (5,)))


@draws("addmm")
def _addmm(d: Draw) -> tuple[Shape, Build]:
    target = d.one((2, 3), (3,), (1, 3), (2, 1))
    return _call(*some(d, target, (2, 4), (4, 3), summand=True), beta=d.real(), alpha=d.real())


@draws("addmv")
def _addmv(d: Draw) -> tuple[Shape, Build]:
    return _call(
        *some(d, d.one((2,), (1,)), (2, 4), (4,), summand=True), beta=d.real(), alpha=d.real()
    )


@draws("addr")
def _addr(d: Draw) -> tuple[Shape, Build]:
    return _call(
        *some(d, d.one((2, 3), (3,)), (2,), (3,), summand=True), beta=d.real(), alpha=d.real()
    )


@draws("baddbmm")
def _baddbmm(d: Draw) -> tuple[Shape, Build]:
    target = d.one((2, 2, 3), (3,), (2, 1, 1))
    return _call(
        *some(d, target, (2, 2, 1), (2, 1, 3), summand=True), beta=d.real(), alpha=d.real()
    )


@draws("addbmm")
def _addbmm(d: Draw) -> tuple[Shape, Build]:
    target = d.one((2, 3), (3,), (2, 1))
    return _call(
        *some(d, target, (2, 2, 1), (2, 1, 3), summand=True), beta=d.real(), alpha=d.real()
    )


@draws("addcmul", "addcdiv")
def _addcmul(d: Draw) -> tuple[Shape, Build]:
    shapes = [d.one((2, 3), (3,), (2, 1), (1,)) for _ in range(3)]
    return _call(*some(d, *shapes, summand=True), value=d.real())


@draws("convolution")
def _convolution(d: Draw) -> tuple[Shape, Build]:
    shape, arguments, rest = _conv(d)
    return _call(shape, arguments, *rest)


@draws("_convolution")
def _old_convolution(d: Draw) -> tuple[Shape, Build]:
    shape, arguments, rest = _conv(d)
    return _call(shape, arguments, *rest, False, False, True, True)


def _conv(d: Draw) -> tuple[Shape, Any, tuple[Any, ...]]:
    groups, transposed, stride = d.one(1, 2), d.flag(), d.whole(1, 2)
    weight = (2, 1 if groups == 2 else 2, 3)
    shape, arguments = some(d, (1, 2, 6), weight, (2,))
    padding, dilation = d.whole(0, 2), d.whole(1, 2)
    return shape, arguments, ([stride], [padding], [dilation], transposed, [0], groups)


@draws("_trilinear")
def _trilinear(d: Draw) -> tuple[Shape, Build]:
    return _call(*some(d, (2, 3), (4, 3, 2), (2, 2)), [1, 3], [0], [1, 2], [2, 3])


@draws("grid_sampler_2d")
def _grid2d(d: Draw) -> tuple[Shape, Build]:
    grid = d.tensor(1, 3, 3, 2)
    return (1, 1, 3, 4), fixed(grid, d.whole(0, 2), d.whole(0, 2), d.flag())


@draws("grid_sampler_3d")
def _grid3d(d: Draw) -> tuple[Shape, Build]:
    grid = d.tensor(1, 2, 2, 2, 3)
    return (1, 1, 2, 3, 2), fixed(grid, d.whole(0, 1), d.whole(0, 2), d.flag())


@draws("add", "sub", "rsub")
def _add(d: Draw) -> tuple[Shape, Build]:
    shape, alpha = d.sizes(), d.real()
    other = d.broadcast(shape)
    if d.flag():
        return shape, fixed(d.one(d.tensor(*other), d.real()), alpha=alpha)
    total = math.prod(shape) + (0 if d.flag() else math.prod(other))

    def build(x: Tensor) -> Any:
        first, rest = halves(x, shape)
        second = rest.reshape(other) if rest.numel() else first
        return (first, second), {"alpha": alpha}

    return (total,), build


@draws("cat", "stack")
def _cat(d: Draw) -> tuple[Shape, Build]:
    constant, dim = d.tensor(2, 3), d.one(0, 1, -1)
    return (2, 3), d.one(
        lambda x: (([x, constant], dim), {}),
        lambda x: (([x, x, constant, x], dim), {}),
        lambda x: (([x, -2 * x], dim), {}),
    )


@draws("where")
def _where(d: Draw) -> tuple[Shape, Build]:
    mask, constant = d.mask(*d.one((2, 3), (3,), (4, 2, 1))), d.tensor(1, 3)
    other = d.one((2, 3), (3,), (1,))
    if d.flag():
        return (2, 3), d.one(
            lambda x: ((mask, x, constant), {}),
            lambda x: ((mask, constant, x), {}),
            lambda x: ((mask, x, x), {}),
        )
    return (6 + math.prod(other),), lambda x: ((mask, *parted(x, (2, 3), other)), {})


@draws("maximum", "minimum", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2")
def _pair(d: Draw) -> tuple[Shape, Build]:
    other = d.one((2, 3), (3,), (1,), (4, 1, 1))
    constant = d.tensor(*other)
    if d.flag():
        return (2, 3), fixed(constant)
    return (6 + math.prod(other),), lambda x: (tuple(parted(x, (2, 3), other)), {})


@draws("clamp")
def _clamp(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    low, high = (d.one(None, d.real()) for _ in range(2))
    if d.flag() and (low, high) != (None, None):
        return shape, fixed(low, high)
    ends, constant = [d.tensor(*d.broadcast(shape)) for _ in range(2)], d.tensor(1)
    if d.flag():
        return shape, fixed(min=ends[0], max=d.one(None, ends[0], ends[1] + 1))
    return shape, d.one(
        lambda x: ((constant, x, None), {}),
        lambda x: ((x, x - 1, ends[0]), {}),
        lambda x: ((x, -2 * x, 3 * x), {}),
    )


@draws("clamp_min", "clamp_max")
def _clamp_one(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, d.one(
        fixed(d.real()), fixed(d.tensor(*d.broadcast(shape))), lambda x: ((x, 2 * x), {})
    )
