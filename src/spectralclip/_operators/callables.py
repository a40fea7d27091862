"""An operator from two functions on arrays, with the tests that it has to pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from spectralclip._common import Shape, as_shape
from spectralclip._operators.affine import AffineFunction, NotAffineError
from spectralclip._operators.check_affine import require_affine
from spectralclip._operators.maps import ArrayFunction, CallableMap, LinearMap, adjoint_gap


class _AdjointTest(NamedTuple):
    """How the two functions are held against each other."""

    pairs: int = 3  # random vectors on both sides
    # In roundings of the computation, relative to the lengths of the vectors. Products of float32
    # that sum 4608 terms were seen to be off by eight; a wrong adjoint by 1e5 and more.
    roundings: float = 100.0


TEST = _AdjointTest()


def callable_maps(
    products: tuple[Callable[[Any], Any], Callable[[Any], Any]],
    shapes: tuple[Sequence[int] | int, Sequence[int] | int],
    arrays: Literal["numpy", "torch"],
    batched: bool,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    name: str | None,
) -> tuple[AffineFunction, list[LinearMap]]:
    """The function and the map of a pair of products, tested: see `from_callables`."""
    if arrays not in ("numpy", "torch"):
        raise ValueError(f'arrays must be "numpy" or "torch", got {arrays!r}.')
    for apply, role in zip(products, ("matvec", "rmatvec"), strict=True):
        if not callable(apply):
            raise TypeError(f"{role} must be a function of an array, got {type(apply).__name__}.")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype such as torch.float64, got {dtype!r}.")
    source, target = (
        _checked_shape(shape, side)
        for shape, side in zip(shapes, ("in_shape", "out_shape"), strict=True)
    )
    label = f" of {name}" if name else ""
    forward = ArrayFunction(products[0], f"matvec{label}", source, target, arrays, batched)
    adjoint = ArrayFunction(products[1], f"rmatvec{label}", target, source, arrays, batched)
    dtype = dtype or _precision(forward)
    function = AffineFunction(cast(Any, _Named(forward, name)), source, dtype=dtype, device=device)
    if bool(function(function.zeros(1)).any()):
        raise NotAffineError(
            f"{forward.role} does not map zeros to zeros: it has an offset, which is no part of a "
            "linear map. Subtract its value at zero."
        )
    require_affine(function)
    linear = CallableMap(forward, adjoint)
    _require_adjoint(linear, function, adjoint.role)
    function.is_checked = True
    return function, [linear]


class _Named:
    """A product under the name that the operator is to have."""

    def __init__(self, apply: ArrayFunction, name: str | None) -> None:
        self._apply, self.__name__ = apply, name or "a pair of callables"

    def __call__(self, x: Tensor) -> Tensor:
        return self._apply(x.detach())


def _checked_shape(shape: Sequence[int] | int, name: str) -> Shape:
    try:
        sizes = as_shape(shape)
    except TypeError as error:
        raise TypeError(
            f"{name} must be a sequence of integers such as (3, 32, 32), got {shape!r}."
        ) from error
    if not sizes or min(sizes) < 1:
        raise ValueError(
            f"{name} must have at least one dimension and no empty one, got {sizes}: it is the "
            "shape of one array, without a batch dimension."
        )
    return sizes


def _precision(forward: ArrayFunction) -> torch.dtype:
    """The precision in which a function answers float64; torch's default for tensors.

    Functions on tensors refuse other precisions than their own. Others convert what they get, and
    say by what they return in which precision they compute.
    """
    if forward.arrays == "torch":
        return torch.get_default_dtype()
    return forward.answer(torch.zeros(1, *forward.source, dtype=torch.float64)).dtype


def _require_adjoint(linear: LinearMap, function: AffineFunction, role: str) -> None:
    """Raise unless `<M x, y> = <x, M^T y>` at random vectors, and say how they differ."""
    generator = torch.Generator("cpu").manual_seed(1)
    tolerance = TEST.roundings * torch.finfo(function.dtype).eps
    differences, factors = [], []
    for _ in range(TEST.pairs):
        x, y = (
            torch.randn(1, size, generator=generator, dtype=torch.float64, device="cpu").to(
                function.device, function.dtype
            )
            for size in (linear.source.size, linear.target.size)
        )
        left, right, gap = adjoint_gap(x, y, linear.forward(x), linear.adjoint(y))
        differences.append((gap > tolerance, left, right))
        factors.append(right / left if left else math.inf)
    failed = [(left, right) for fails, left, right in differences if fails]
    if not failed:
        return
    left, right = failed[0]
    steady = max(factors) - min(factors) <= 1e-3 * abs(factors[0]) and math.isfinite(factors[0])
    cause = (
        f"it is {factors[0]:.4g} times the transpose: divide by that factor"
        if steady
        else "it is another map: look for a kernel that is not flipped, channels in another order, "
        "padding or stride that is not undone, or products in a shortened precision"
    )
    raise ValueError(
        f"{role} is not the transpose of matvec: for random x and y, <matvec(x), y> = {left:.9g} "
        f"and <x, rmatvec(y)> = {right:.9g}; {cause}. In JAX, jax.linear_transpose makes it."
    )
