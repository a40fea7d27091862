"""`norm_bounds`: an interval that holds a layer's norm, and what kind of promise it is.

A Ritz value is a lower bound. An upper bound needs an argument of its own:

- *exact*: the layer is block diagonal (`exact`), or is small itself;
- *embedding*: a zero-padded convolution is a part of a circular one on a larger torus (`exact`);
- *probabilistic*: any layer, by one Lanczos run from a random vector (`lanczos`);
- certificates for what is left, where a deterministic answer is asked for (`cholesky`).

Here it is decided which of them a layer gets, from what it is and what each would cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spectralclip._bounds.exact import (
    EXACT,
    affordable,
    circular_torus,
    embedding_torus,
    largest_value,
    listed_blocks,
    peak_with_margin,
    rounding,
)
from spectralclip._bounds.interval import Interval
from spectralclip._bounds.lanczos import Ceiling, Search, rounding_margin
from spectralclip._bounds.views import View
from spectralclip._common import checked_generator
from spectralclip._linalg import largest_singular_value, norm_is_below
from spectralclip._operators import BlockForm, Layer, LinearOperator, plain_numerics
from spectralclip._spectrum import large_value

# Of the width asked for, what a search over frequencies may leave open, and what a smaller image
# may fall short of the whole one.
SHARE = 1 / 8


@plain_numerics()
def norm_bounds(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None = None,
    *,
    tol: float = 0.01,
    failure: float = 1e-6,
    deterministic: bool = False,
    generator: torch.Generator | None = None,
) -> Interval:
    """An interval that holds the largest singular value of a layer, its Lipschitz constant.

    Args:
        layer: A module, a sequence of modules (their composition), an affine callable, or
            what `as_operator` made of one.
        in_shape: Shape of one input, as for `svds`. For a bound that holds at every input size see
            `norm_bounds_all_sizes`.
        tol: Relative width to stop at. A wider interval is returned where this one is out of
            reach; it holds all the same.
        failure: Accepted probability that a probabilistic upper end is too small.
        deterministic: Accept only upper ends that rest on no probability.
        generator: Source of the random start; by default the same for each call.

    Raises:
        ValueError: The arguments do not fit the layer, or there is no bound of the kind asked
            for; the message names the remedy.

    Example:
        >>> import torch
        >>> from spectralclip import norm_bounds
        >>> conv = torch.nn.Conv2d(16, 16, 3, padding=1)
        >>> interval = norm_bounds(conv, (16, 32, 32))
        >>> interval.kind, interval.width <= 0.01
        ('embedding', True)
    """
    request = BoundsRequest(tol, failure, deterministic)
    return norm_bounds_and_vector(layer, in_shape, request, generator)[0]


class BoundsRequest(NamedTuple):
    """How wide an interval may be, and how sure it has to be, as for `norm_bounds`."""

    tol: float
    failure: float
    deterministic: bool


def norm_bounds_and_vector(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None,
    request: BoundsRequest,
    generator: torch.Generator | None = None,
) -> tuple[Interval, Tensor | None]:
    """What `norm_bounds` returns, and the leading right vector where an iteration found it."""
    tol, failure, deterministic = request
    check_request(tol, failure)
    view = View(layer, in_shape)
    generator = checked_generator(generator)
    found = _from_blocks(view, request, generator)
    if found is not None:
        return found, None
    if _formable(view.op, EXACT.dense_side):
        return _dense(view.double), None
    found, vector = _iterated(view, request, generator)
    if deterministic and found.width > tol:
        found = _certified(view.double, found, tol)
    return found, vector


def check_request(tol: float, failure: float = 0.5) -> None:
    """Raise unless these are a width and a probability."""
    if not isinstance(tol, (int, float)) or not (math.isfinite(tol) and tol > 0):
        raise ValueError(f"tol must be a positive number such as 0.01, got {tol!r}.")
    if not isinstance(failure, (int, float)) or not 0 < failure < 1:
        raise ValueError(
            "failure must be a probability between 0 and 1, such as 1e-6, both excluded, got "
            f"{failure!r}. For an upper end that cannot fail, use deterministic=True."
        )


def _from_blocks(view: View, request: BoundsRequest, generator: torch.Generator) -> Interval | None:
    """The norm of the largest block, where the layer is block diagonal."""
    blocks = listed_blocks(view.op)
    if blocks is not None:
        dear = not affordable(blocks)
        return (_largest_matrix(view, request, generator) if dear else None) or _exact(view)
    conv = view.convolution
    torus = None if conv is None else circular_torus(conv)
    if conv is None or torus is None or not (request.deterministic or affordable(torus)):
        return None
    return Interval(*peak_with_margin(conv, torus, 0.0), "exact", 0.0)


def _exact(view: View) -> Interval:
    blocks, dtype = _known_blocks(view)
    conv = view.op.convolution
    taps = 1 if conv is None else math.prod(conv.weight.shape[2:])
    value, margin = largest_value(blocks), rounding(dtype, blocks.block_shape, taps)
    return Interval(value * (1 - margin), value * (1 + margin), "exact", 0.0)


def _known_blocks(view: View) -> tuple[BlockForm, torch.dtype]:
    """The blocks as exactly as they can be had, and the precision in which they are known.

    A weight as it is stored is exact. One that is computed, by a batch norm or a parametrization,
    is computed in float64; not all parametrizations can be.
    """
    own = listed_blocks(view.op)
    assert own is not None
    places = {value.data_ptr() for value in view.op.function.values.values()}
    if own.blocks(slice(0, 1)).data_ptr() in places:
        return own, torch.float64
    exact = listed_blocks(view.double)
    return (own, view.op.dtype) if exact is None else (exact, view.double.dtype)


def _largest_matrix(
    view: View, request: BoundsRequest, generator: torch.Generator
) -> Interval | None:
    """The largest norm of a few large matrices, by a Lanczos run on each.

    A block counts once, however often the layer uses it, and all of them share the probability.
    Where none is accepted, a Cholesky factor proves the upper end; None where it does not.
    """
    blocks, dtype = _known_blocks(view)
    tol, failure, deterministic = request
    count, margin = blocks.copies.shape[0], rounding(dtype, blocks.block_shape)
    lower = upper = 0.0
    spent = 0
    for index in range(count):
        matrix = blocks.blocks(slice(index, index + 1))[0]
        layer = nn.Linear(1, 1, bias=False, device="meta")
        layer.weight = nn.Parameter(matrix, requires_grad=False)
        view = View(layer, matrix.shape[1])
        search = Search(view, tol, failure / count, Ceiling(), deterministic)
        ends, _ = search.run(generator)
        highest = (1 + tol / 2) * ends.lower if deterministic else ends.upper
        if deterministic and not norm_is_below(matrix, highest):
            return None
        lower, upper = max(lower, ends.lower), max(upper, highest)
        spent += ends.num_matvecs
    lower, upper = lower * (1 - margin), upper * (1 + margin)
    if deterministic:
        return Interval(lower, upper, "cholesky", 0.0, spent)
    return Interval(lower, upper, "probabilistic", failure, spent)


def _iterated(
    view: View, request: BoundsRequest, generator: torch.Generator
) -> tuple[Interval, Tensor | None]:
    """Both ends by iteration, the upper one from an embedding where that is good enough."""
    tol, failure, deterministic = request
    large, spent = view.is_large(tol / 2), 0
    ceiling = _embedding(view, request, sure=deterministic or view.is_large(tol))
    # On large images an embedding is nearly the norm, and singular vectors nearly Fourier modes.
    if large and ceiling.value < math.inf:
        near = view.cropped(SHARE * tol) or view
        search = Search(near, tol, failure, ceiling, deterministic=True, fourier_modes=True)
        found, vector = search.run(generator)
        spent = found.num_matvecs
        if found.width <= tol:
            return found, vector if near is view else None
    found, vector = Search(view, tol, failure, ceiling, deterministic).run(generator)
    return replace(found, num_matvecs=found.num_matvecs + spent), vector


def _embedding(view: View, request: BoundsRequest, *, sure: bool) -> Ceiling:
    """Upper bound on a zero-padded convolution's norm; infinity for others, or if too costly.

    Unless it is `sure` to be needed, one large symbol is computed first: on small images it often
    shows that no bound of this kind is good enough.
    """
    conv = view.convolution
    torus = None if conv is None else embedding_torus(conv)
    if conv is None or torus is None or not (request.deterministic or affordable(torus)):
        return Ceiling()
    floor = 0.0 if sure else (1 - 1e-9) * large_value(torus)
    excess = SHARE * request.tol
    return Ceiling(floor, lambda known: peak_with_margin(conv, torus, excess, known=known)[1])


def _formable(op: LinearOperator, side: int) -> bool:
    # Coordinates in fewer than three dimensions do not have their largest density at zero, as
    # the probabilistic bound needs.
    m, n = op.shape
    return min(m, n) <= 2 or (min(m, n) <= side and m * n <= EXACT.dense_entries)


def _dense(op: LinearOperator) -> Interval:
    """The norm of the matrix itself, formed by as many products as its shorter side has entries."""
    m, n = op.shape
    value = largest_singular_value(op.to_dense())
    margin = 4 * (m + n) * torch.finfo(torch.float64).eps + rounding_margin(op.dtype)
    return Interval(value * (1 - margin), value * (1 + margin), "exact", 0.0, min(m, n))


def _certified(double: LinearOperator, found: Interval, tol: float) -> Interval:
    """A deterministic upper end where the embedding's is too wide or missing."""
    if _formable(double, EXACT.dense_side_deterministic):
        formed = _dense(double)
        return replace(formed, num_matvecs=formed.num_matvecs + found.num_matvecs)
    from spectralclip._bounds.cholesky import deterministic_upper

    upper = deterministic_upper(double, found.lower, tol)
    if upper is not None and upper < found.upper:
        return Interval(found.lower, upper, "cholesky", 0.0, found.num_matvecs)
    if math.isinf(found.upper):
        m, n = double.shape
        raise ValueError(
            f"{double.name} is a {m} x {n} matrix with no exact form, and too large for a "
            "deterministic bound. Use norm_bounds(..., deterministic=False): its upper end fails "
            "with a known small probability."
        )
    return found
