"""`norm_bounds`: an interval that holds a layer's norm, and what kind of promise it is.

A Ritz value is a lower bound. An upper bound needs an argument of its own:

- *exact*: the layer falls apart into small matrices (`exact`), or is small itself;
- *embedding*: a zero-padded convolution is a part of a circular one on a larger torus
  (`exact`);
- *probabilistic*: any layer. One Lanczos run from a random vector; the bound fails only if that
  vector was nearly orthogonal to the leading one, which has a known small probability
  (`lanczos`);
- *every size*: the symbol of a convolution between the points of a grid, by Riesz's lemma;
- certificates for what is left, where a deterministic answer is asked for (`cholesky`).

Here it is decided which of them a layer gets, from what it is and what each would cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from spectralclip._bounds.exact import (
    affordable,
    circular_torus,
    embedding_torus,
    largest_value,
    listed_blocks,
    peak_with_margin,
    rounding,
)
from spectralclip._bounds.lanczos import Ceiling, Search, relative_width, slack
from spectralclip._bounds.views import View
from spectralclip._common import Shape
from spectralclip._linalg import largest_eigenvalue, norm_is_below, on_host
from spectralclip._operators import (
    ConvMap,
    Layer,
    LinearOperator,
    ListedBlocks,
    describe,
    known_shape,
    plain_numerics,
)
from spectralclip._spectrum import Torus, enough_points, large_value

# Smaller sides up to which the whole matrix is formed; more where only a proof will do.
DENSE_SIDE, DENSE_SIDE_DETERMINISTIC = 64, 1024
DENSE_ENTRIES = 2**25  # and how many numbers that matrix may have
# Of the width asked for, what a search over frequencies may leave open, and what a smaller image
# may fall short of the whole one.
SHARE = 1 / 8


@final
@dataclass(frozen=True)
class Interval:
    """A lower and an upper bound on a norm.

    Attributes:
        lower: Lower end.
        upper: Upper end.
        kind: What the upper end rests on: "exact", "embedding", "every size", "cholesky",
            "strips" (all deterministic), or "probabilistic".
        failure: Probability that the upper end is too small; 0 for deterministic kinds.
        applications: Vectors sent through the layer or its transpose, one each.

    Example:
        >>> from spectralclip import Interval
        >>> interval = Interval(2.0, 2.02, "embedding", 0.0)
        >>> 2.01 in interval, round(interval.width, 4)
        (True, 0.01)
    """

    lower: float
    upper: float
    kind: str
    failure: float
    applications: int = 0

    def __contains__(self, value: float | Tensor) -> bool:
        """Whether a number lies between the ends."""
        return self.lower <= float(value) <= self.upper

    @property
    def width(self) -> float:
        """Relative width: `upper / lower - 1`."""
        return relative_width(self.lower, self.upper)


@plain_numerics()
def norm_bounds(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None = None,
    *,
    rtol: float = 0.01,
    failure: float = 1e-6,
    deterministic: bool = False,
    generator: torch.Generator | None = None,
) -> Interval:
    """An interval that holds the largest singular value of a layer, its Lipschitz constant.

    Args:
        layer: A module, a sequence of modules (their composition), an affine callable, or
            what `as_operator` made of one.
        in_shape: Shape of one input, without the batch dimension. May be left out where the layer
            knows it (`nn.Linear`, compositions that begin with one, an operator). Elsewhere
            None asks for a bound that holds at every input size: for batch norms, and
            convolutions with zero or circular padding, alone or with batch norms around them.
            The interval then holds the supremum over all sizes.
        rtol: Relative width to stop at. A wider interval is returned where this one is out of
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
        >>> norm_bounds(conv, None).kind
        'every size'
    """
    request = BoundsRequest(rtol, failure, deterministic)
    return norm_bounds_and_vector(layer, in_shape, request, generator)[0]


class BoundsRequest(NamedTuple):
    """How wide an interval may be, and how sure it has to be, as for `norm_bounds`."""

    rtol: float
    failure: float
    deterministic: bool


def norm_bounds_and_vector(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None,
    request: BoundsRequest,
    generator: torch.Generator | None = None,
) -> tuple[Interval, Tensor | None]:
    """What `norm_bounds` returns, and the leading right vector where an iteration found it."""
    rtol, failure, deterministic = request
    check_request(rtol, failure)
    if in_shape is None:
        known = layer.in_shape if isinstance(layer, LinearOperator) else known_shape(layer)
        if known is None:
            return _every_size(layer, rtol), None
        in_shape = known
    view = View(layer, in_shape)
    generator = generator or torch.Generator("cpu").manual_seed(0)
    found = _from_blocks(view, request, generator)
    if found is not None:
        return found, None
    if _formable(view.op, DENSE_SIDE):
        return _dense(view.double), None
    found, vector = _iterated(view, request, generator)
    if deterministic and found.width > rtol:
        found = _certified(view.double, found, rtol)
    return found, vector


def check_request(rtol: float, failure: float) -> None:
    if not isinstance(rtol, (int, float)) or not (math.isfinite(rtol) and rtol > 0):
        raise ValueError(f"rtol must be a positive number such as 0.01, got {rtol!r}.")
    if not isinstance(failure, (int, float)) or not 0 < failure < 1:
        raise ValueError(
            "failure must be a probability between 0 and 1, such as 1e-6, both excluded, got "
            f"{failure!r}. For an upper end that cannot fail, use deterministic=True."
        )


# --- One input size ------------------------------------------------------------------------


def _from_blocks(view: View, request: BoundsRequest, generator: torch.Generator) -> Interval | None:
    """The norm of the largest block, where the layer falls apart into some."""
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


def _known_blocks(view: View) -> tuple[ListedBlocks, torch.dtype]:
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
    rtol, failure, deterministic = request
    count, margin = blocks.copies.shape[0], rounding(dtype, blocks.block_shape)
    lower = upper = 0.0
    spent = 0
    for index in range(count):
        matrix = blocks.blocks(slice(index, index + 1))[0]
        layer = nn.Linear(1, 1, bias=False, device="meta")
        layer.weight = nn.Parameter(matrix, requires_grad=False)
        search = Search(
            View(layer, matrix.shape[1]), rtol, failure / count, Ceiling(), deterministic
        )
        ends = search.run(generator)
        highest = (1 + rtol / 2) * ends.lower if deterministic else ends.upper
        if deterministic and not norm_is_below(matrix, highest):
            return None
        lower, upper = max(lower, ends.lower), max(upper, highest)
        spent += ends.applications
    lower, upper = lower * (1 - margin), upper * (1 + margin)
    if deterministic:
        return Interval(lower, upper, "cholesky", 0.0, spent)
    return Interval(lower, upper, "probabilistic", failure, spent)


def _iterated(
    view: View, request: BoundsRequest, generator: torch.Generator
) -> tuple[Interval, Tensor | None]:
    """Both ends by iteration, the upper one from an embedding where that is good enough."""
    rtol, failure, deterministic = request
    large, spent = view.is_large(rtol / 2), 0
    ceiling = _embedding(view, request, sure=deterministic or view.is_large(rtol))
    # On large images an embedding is nearly the norm, and waves are nearly singular vectors.
    if large and ceiling.value < math.inf:
        near = view.cropped(SHARE * rtol) or view
        ends = Search(near, rtol, failure, ceiling, deterministic=True, waves=True).run(generator)
        spent = ends.applications
        if relative_width(ends.lower, ceiling.value) <= rtol:
            vector = ends.vector if near is view else None
            return Interval(ends.lower, ceiling.value, "embedding", 0.0, spent), vector
    ends = Search(view, rtol, failure, ceiling, deterministic).run(generator)
    kind, risk = ("embedding", 0.0) if ends.certain else ("probabilistic", failure)
    return Interval(ends.lower, ends.upper, kind, risk, ends.applications + spent), ends.vector


def _embedding(view: View, request: BoundsRequest, *, sure: bool) -> Ceiling:
    """Upper bound on a zero-padded convolution's norm; infinity for others, or if too costly.

    Unless it is `sure` to be needed, one large symbol is looked at first: on small images it often
    shows that no bound of this kind is good enough.
    """
    conv = view.convolution
    torus = None if conv is None else embedding_torus(conv)
    if conv is None or torus is None or not (request.deterministic or affordable(torus)):
        return Ceiling()
    floor = 0.0 if sure else (1 - 1e-9) * large_value(torus)
    excess = SHARE * request.rtol
    return Ceiling(floor, lambda known: peak_with_margin(conv, torus, excess, known=known)[1])


def _formable(op: LinearOperator, side: int) -> bool:
    # Coordinates in fewer than three dimensions do not have their largest density at zero, as
    # the probabilistic bound needs.
    m, n = op.shape
    return min(m, n) <= 2 or (min(m, n) <= side and m * n <= DENSE_ENTRIES)


def _dense(op: LinearOperator) -> Interval:
    """The norm of the matrix itself, formed by as many applications as its shorter side has."""
    matrix = on_host(op.to_dense())
    m, n = matrix.shape
    scale = float(matrix.abs().max()) or 1.0
    matrix = matrix / scale
    gram = matrix @ matrix.T if m <= n else matrix.T @ matrix
    value = scale * math.sqrt(largest_eigenvalue(gram[None], 0.0))
    margin = 4 * (m + n) * torch.finfo(torch.float64).eps + slack(op.dtype)
    return Interval(value * (1 - margin), value * (1 + margin), "exact", 0.0, min(m, n))


def _certified(double: LinearOperator, found: Interval, rtol: float) -> Interval:
    """A deterministic upper end where the embedding's is too wide or missing."""
    if _formable(double, DENSE_SIDE_DETERMINISTIC):
        formed = _dense(double)
        return replace(formed, applications=formed.applications + found.applications)
    from spectralclip._bounds.cholesky import deterministic_upper

    certificate = deterministic_upper(double, found.lower, rtol)
    if certificate is not None and certificate[0] < found.upper:
        return Interval(found.lower, *certificate, 0.0, found.applications)
    if math.isinf(found.upper):
        m, n = double.shape
        raise ValueError(
            f"{double.name} is a {m} x {n} matrix with no exact form, and no deterministic bound "
            "fits it. Use deterministic=False for one that fails with a known small probability."
        )
    return found


# --- Every input size ----------------------------------------------------------------------


def _every_size(layer: Layer | LinearOperator, rtol: float) -> Interval:
    """Bounds on the supremum of the norm over all input sizes."""
    view = View(layer, _probe_shape(layer))
    conv = view.convolution
    if conv is None:
        if listed_blocks(view.op) is None:
            raise _needs_shape(layer)
        return _exact(view)
    geometry, kernel = conv.geometry, conv.weight.shape[2:]
    paddings = zip(geometry.before, geometry.after, geometry.dilation, kernel, strict=True)
    repeats = any(before + after > d * (k - 1) for before, after, d, k in paddings)
    circular = geometry.mode == "circular"
    if geometry.mode != "zeros" and (repeats or not circular):
        raise _needs_shape(layer)
    lower, upper = _supremum(conv, geometry.stride, rtol)
    if circular and max(geometry.stride) > 1:
        # At sizes that the stride does not divide, the last window and the first are closer
        # than a stride: all that is left is that they are windows of stride one.
        upper = _supremum(conv, (1,) * len(kernel), rtol)[1]
    return Interval(lower, upper, "every size", 0.0)


def _needs_shape(layer: Layer | LinearOperator) -> ValueError:
    name = layer.name if isinstance(layer, LinearOperator) else describe(layer)
    return ValueError(
        f"in_shape=None asks for a bound at every input size, which is known for a dense layer, a "
        "batch norm, or one convolution with zero padding (or circular padding that repeats no "
        f"window), alone or with batch norms around it; got {name}. Give in_shape, the shape of "
        "one input such as (3, 32, 32)."
    )


def _probe_shape(layer: Layer | LinearOperator) -> Shape:
    """Some shape that the layer accepts."""
    parts: list[Any] = [layer]
    while any(isinstance(part, (nn.Sequential, list, tuple)) for part in parts):
        at = next(i for i, p in enumerate(parts) if isinstance(p, (nn.Sequential, list, tuple)))
        parts[at : at + 1] = list(parts[at])
    convs = [part for part in parts if isinstance(part, nn.modules.conv._ConvNd)]
    norms = [part for part in parts if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    known = len(convs) + len(norms) + len(linears) == len(parts) > 0
    if not known or len(convs) + len(linears) > 1:
        raise _needs_shape(layer)
    names = ("in_channels", "in_features", "num_features")
    channels = next(getattr(parts[0], name) for name in names if hasattr(parts[0], name))
    if not convs:
        axes = {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}.get(type(parts[0]), 0)
        return (channels, *[1] * axes)
    conv = convs[0]
    padding = (0,) * len(conv.kernel_size) if isinstance(conv.padding, str) else conv.padding
    reach = zip(conv.dilation, conv.kernel_size, padding, strict=True)
    return (channels, *[2 * (d * (k - 1) + 1 + p) for d, k, p in reach])


def _supremum(conv: ConvMap, stride: Shape, rtol: float) -> tuple[float, float]:
    """Bounds on the largest singular value of a convolution's symbol over all frequencies.

    The torus is so fine that a search of cells two frequencies wide suffices. A dilation d
    stretches frequencies and nothing else; what it shares with the stride cancels.
    """
    steps = tuple(s // math.gcd(s, d) for s, d in zip(stride, conv.geometry.dilation, strict=True))
    ones, excess = (1,) * len(steps), 0.99 * rtol
    points = enough_points(Torus(conv, steps, steps, ones).degrees, excess)
    sides = tuple(s * 2 ** (1 + n.bit_length()) for s, n in zip(steps, points, strict=True))
    torus = Torus(conv, sides, steps, ones)
    return peak_with_margin(conv, torus, excess, everywhere=True)
