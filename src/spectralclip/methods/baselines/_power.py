"""The power method on a layer and its transpose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._operators import Layer, LinearOperator, as_operator, plain_numerics
from spectralclip._spectrum import gaussian
from spectralclip.methods._settings import check_count

# A vector that moves by no more than this in an iteration has a residual of about as much,
# relative to its eigenvalue, and half of that on the scale of singular values.
SETTLED = 1e-4
# Where the leading values lie close together the vector never settles, but their norm has.
MOST_ITERATIONS = 2000


def power_method(
    gram: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tol: float = 0.0
) -> tuple[Tensor, int, bool]:
    """Iterate `x <- M^T M x / ||M^T M x||`.

    Args:
        gram: `M^T M` on a batch of one.
        start: Where to begin.
        iterations: At most so many.
        tol: Stop once a step moves the unit vector by no more than this; zero for never, and
            without looking.

    Returns:
        The unit vector, how many iterations there were, and whether it has settled. A vector that
        the layer takes to zero stays as it is.
    """
    x = start / torch.linalg.vector_norm(start)
    for done in range(1, iterations + 1):
        image = gram(x)
        size = torch.linalg.vector_norm(image)
        before, x = x, torch.where(size == 0, x, image / size)
        if tol > 0 and float(torch.linalg.vector_norm(x - before)) <= tol:
            return x, done, True
    return x, iterations, False


@plain_numerics()
def power_norm(
    layer: Layer,
    in_shape: Shape,
    generator: torch.Generator | None,
    iterations: int | None,
) -> float:
    """The norm of a layer by the power method from a random start.

    Args:
        layer: Any affine layer.
        in_shape: Shape of one input.
        generator: Source of the start; by default the same for each call.
        iterations: How many; by default as many as it takes to settle.
    """
    if iterations is not None:
        check_count(1, power_iterations=iterations)
    op = as_operator(layer, in_shape)
    start = random_start(op, generator)
    tol = SETTLED if iterations is None else 0.0
    x, _, _ = power_method(op.gram, start, iterations or MOST_ITERATIONS, tol)
    return float(torch.linalg.vector_norm(op.matvec(x)))


def random_start(op: LinearOperator, generator: torch.Generator | None) -> Tensor:
    """A random batch of one input."""
    if generator is None:
        generator = torch.Generator("cpu").manual_seed(0)
    return gaussian(op, 1, op.shape[1], generator).reshape(1, *op.in_shape)
