"""All numbers of one operator: norm, leading values, Frobenius norm, what torch would see."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from spectralclip._bounds import BoundsRequest, Interval, norm_bounds_and_vector
from spectralclip._common import Shape
from spectralclip._linalg import largest_singular_value, sum_of_squares, wide
from spectralclip._models import unhooked
from spectralclip._operators import (
    LinearOperator,
    Rows,
    as_operator,
    evaluation_mode,
    is_conv1d,
    is_plain,
    plain_numerics,
)
from spectralclip._spectrum import svds

_TRANSPOSED = nn.modules.conv._ConvTransposeNd
# Up to which sizes numbers are computed directly.
_GRAM_SIDE = 1024  # of a matrix whose eigenvalues are all computed, for one of them
_BASIS_SIDE = 1024  # the smaller one, up to which every basis vector is sent through
_SAMPLES = 64  # random vectors for a Frobenius norm: its error is below 9 % for any layer
_ENTRIES = 2**22  # of the vectors that are sent through at once: 16 MB in float32


class Request(NamedTuple):
    """How accurate, how many values, how sure."""

    k: int
    tol: float
    failure: float
    deterministic: bool
    seed: int
    values_tol: float = 0.01  # accuracy of the leading singular values: enough for a curve

    def bounded(self, modules: Sequence[nn.Module], shape: Shape) -> tuple[Interval, Tensor | None]:
        """The norm of a composition at an input shape, and its leading vector if that is known."""
        request = BoundsRequest(self.tol, self.failure, self.deterministic)
        return norm_bounds_and_vector(_composition(modules), shape, request, self.generator())

    def generator(self) -> torch.Generator:
        """A new source of random numbers, the same each time."""
        return torch.Generator("cpu").manual_seed(self.seed)


@final
@dataclass(frozen=True)
class Findings:
    """What is known of an operator, in plain values."""

    error: str = ""  # why nothing is; else empty
    # The norm at each input shape
    intervals: Mapping[Shape, Interval] = field(default_factory=dict)
    in_shape: Shape = ()  # the shape at which the norm is largest; all that follows is at this one
    out_shape: Shape = ()  # of its output there
    values: tuple[float, ...] = ()  # leading singular values; empty if only the norm was asked for
    frobenius: float = 0.0  # frobenius norm, and whether it is exact
    frobenius_is_exact: bool = True  # whether it is known up to rounding
    reshaped_norm: float | None = None  # what torch would see of a single module's kernel
    kernels: tuple[int, ...] = ()  # the places of the modules that have a kernel

    def norm(self, shape: Shape) -> float:
        """The best single number for the norm at a shape."""
        known = self.values and shape == self.in_shape
        return self.values[0] if known else self.intervals[shape].lower


def examine(
    modules: Sequence[nn.Module], shapes: Sequence[Shape], request: Request, *, whole: bool
) -> Findings:
    """What is known of a layer or chain; only its norms, unless the `whole` is asked for.

    What goes wrong is said in the findings: one odd layer is to spoil no audit.
    """
    try:
        with evaluation_mode(modules), plain_numerics(), torch.no_grad():
            return _findings(modules, shapes, request, whole)
    except (ValueError, TypeError, RuntimeError) as error:
        return Findings(error=str(error) or type(error).__name__)


def _findings(
    modules: Sequence[nn.Module], shapes: Sequence[Shape], request: Request, whole: bool
) -> Findings:
    found = {shape: request.bounded(modules, shape) for shape in shapes}
    intervals = {shape: interval for shape, (interval, _) in found.items()}
    worst = max(shapes, key=lambda shape: intervals[shape].upper)
    op = as_operator(_composition(modules), worst)
    if not whole:
        return Findings("", intervals, worst, op.out_shape)
    frobenius, exact = frobenius_norm(op, request.generator())
    norm, values = intervals[worst], _leading_values(op, request, found[worst][1])
    if not all(map(math.isfinite, (frobenius, *values))):
        raise ValueError(f"The spectrum of {op.name} is not finite: its weights are too large.")
    # Values are found to a tolerance, and the interval may know better.
    values = [min(value, norm.upper) for value in (max(values[0], norm.lower), *values[1:])]
    return Findings(
        "",
        intervals,
        worst,
        op.out_shape,
        tuple(values),
        frobenius,
        exact,
        _reshaped_norm(modules[0], norm) if len(modules) == 1 else None,
        tuple(place for place, part in enumerate(modules) if _kernel(part) is not None),
    )


def _composition(modules: Sequence[nn.Module]) -> nn.Module | list[nn.Module]:
    """As errors are to name it."""
    return modules[0] if len(modules) == 1 else list(modules)


def row_shape(modules: Sequence[nn.Module], shape: Shape) -> Shape:
    """The shape of one row, where the modules act on each row of their input alone.

    A dense layer on (tokens, features) is one matrix for each token: the norm is that of the
    matrix, and its singular values, each as often as there are tokens, would say nothing more.
    """
    parts = map(unhooked, modules)
    rowwise = all(
        is_plain(part, nn.Linear, Rows, nn.Embedding) or is_conv1d(part) for part in parts
    )
    return shape[-1:] if rowwise else shape


def _leading_values(op: LinearOperator, request: Request, v0: Tensor | None) -> list[float]:
    k = min(request.k, *op.shape)
    found = svds(op, op.in_shape, k, tol=request.values_tol, v0=v0, generator=request.generator())
    return [max(0.0, float(value)) for value in found.S]


def _reshaped_norm(module: nn.Module, interval: Interval) -> float | None:
    """The largest singular value of the kernel as a matrix, as torch's spectral_norm has it."""
    weight = _kernel(module)
    if weight is None:
        return None
    if (is_plain(module, nn.Linear) or is_conv1d(module)) and interval.kind == "exact":
        return (interval.lower + interval.upper) / 2  # the kernel is the operator
    # As in torch: transposed convolutions have the output channels second.
    return _matrix_norm(weight.movedim(int(isinstance(module, _TRANSPOSED)), 0).flatten(1))


def _kernel(module: nn.Module) -> Tensor | None:
    if isinstance(module, Rows):
        return None  # torch would see the whole parameter
    weight: Any = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and weight.ndim >= 2 else None


def _matrix_norm(matrix: Tensor) -> float:
    matrix = wide(matrix)
    if min(matrix.shape) <= _GRAM_SIDE:
        return largest_singular_value(matrix)
    shape = (matrix.shape[1],)
    linear = functools.partial(nn.functional.linear, weight=matrix)
    op = as_operator(linear, shape, dtype=matrix.dtype, device=matrix.device)
    return float(svds(op, shape, 1, tol=1e-4).S[0])


def frobenius_norm(op: LinearOperator, generator: torch.Generator) -> tuple[float, bool]:
    """The norm, and whether it is exact up to rounding.

    A map that knows its own answers. Others are applied to every basis vector where that is
    cheap, or to random signs: `E ||M z||^2 = ||M||_F^2` (Hutchinson). An estimate from s random
    vectors has a relative error of about `1 / sqrt(2 s r)`, where r, at least 1, is `(trace
    A)^2 / ||A||_F^2` for `A = M^T M`: below 9 % for any layer.
    """
    square = op.frobenius_sq()
    if square is not None:
        return math.sqrt(square), True
    side = op.adjoint() if op.shape[0] < op.shape[1] else op
    n = side.shape[1]
    step = max(1, _ENTRIES // max(side.shape))
    if n <= _BASIS_SIDE:
        places = torch.arange(n, device="cpu").split(step)
        basis = (nn.functional.one_hot(part, n) for part in places)
        return math.sqrt(sum(_square(side, rows) for rows in basis)), True
    shapes = ((min(step, _SAMPLES - start), n) for start in range(0, _SAMPLES, step))
    bits = functools.partial(torch.randint, 2, generator=generator, dtype=torch.int8, device="cpu")
    total = sum(_square(side, 2 * bits(shape) - 1) for shape in shapes)
    return math.sqrt(total / _SAMPLES), False


def _square(op: LinearOperator, rows: Tensor) -> float:
    return sum_of_squares(op.forward_rows(rows.to(op.device, op.dtype)))
