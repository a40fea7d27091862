"""Activations that are written out by hand: `x` times a gate of a polynomial of `x`.

GELU as transformers write it, `0.5 x (1 + tanh(c (x + 0.044715 x^3)))`, its other forms and SiLU
are products of two values that depend on the input, which have no bound as such. Together they are
one function of each number by itself,

    f(x) = a x (b + g s(p(x))),    s = tanh, sigmoid or erf,

whose slope is bounded, since `s` is flat where `p` is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from spectralclip._lipschitz.flow import Flow, Node, Ref

# How finely the slope of a gated activation is looked at.
_DEGREE = 3  # of the polynomials in gates: GELU by tanh has this one
_CELLS = 2**19  # of the line: they leave 1e-4 of the slope of GELU open, in 0.1 s
_FLAT = 60.0  # where |p| is this large, `s` is flat to far below rounding

Polynomial: TypeAlias = tuple[float, ...]
"""Coefficients, of the constant first; that of the highest power is not zero."""


class Gate(NamedTuple):
    """`shift + scale * s(inner(x))`."""

    shift: float
    scale: float
    squash: str
    inner: Polynomial


Expression: TypeAlias = Polynomial | Gate


def with_gates(flow: Flow) -> Flow:
    """The flow with each product of a value and its own gate as one function of the value."""
    nodes = [_as_gated(node, flow) or node for node in flow.nodes]
    return flow._replace(nodes=nodes)


def _as_gated(node: Node, flow: Flow) -> Node | None:
    factors = (node.argument("self"), node.argument("other"))
    if node.operation != "mul" or not all(isinstance(factor, Ref) for factor in factors):
        return None
    common = set.intersection(*(_ancestors(factor.node, flow) for factor in factors))
    for base in sorted(common, reverse=True):
        slope = _product_slope(*(_expression(factor.node, base, flow) for factor in factors))
        if slope is not None:
            kwargs = {"slope": slope}
            return replace(
                node, operation="self_gated", args=(Ref(base),), kwargs=kwargs, function=None
            )
    return None


def _product_slope(first: Expression | None, second: Expression | None) -> float | None:
    if isinstance(first, Gate):
        first, second = second, first
    if first is None or isinstance(first, Gate) or not isinstance(second, Gate):
        return None
    return _steepest(first[1], *second) if len(first) == 2 and first[0] == 0 else None


# --- Expressions ------------------------------------------------------------------------------


def _operands(node: Node) -> list[Any] | None:
    """What a node is made of, if it is made entry by entry; numbers and nodes."""
    names = {
        **dict.fromkeys(("mul", "div", "add", "sub", "rsub"), ("self", "other")),
        **dict.fromkeys(("pow",), ("self", "exponent")),
        **dict.fromkeys(("square", "neg", "tanh", "sigmoid", "erf"), ("self",)),
    }.get(node.operation)
    if names is None or node.argument("rounding_mode") is not None:
        return None
    found = [_number(node.argument(name)) for name in names]
    return None if any(one is None for one in found) else found


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        scalar = value.numel() == 1 and value.ndim == 0 and not value.is_complex()
        return float(value) if scalar else None
    return value if isinstance(value, (Ref, int, float)) else None


def _ancestors(index: int, flow: Flow) -> set[int]:
    """The nodes that a node is made of entry by entry, itself included."""
    node = flow.nodes[index]
    found = {index}
    for operand in _operands(node) or ():
        if isinstance(operand, Ref) and flow.nodes[operand.node].shape == node.shape:
            found |= _ancestors(operand.node, flow)
    return found


def _expression(index: int, base: int, flow: Flow) -> Expression | None:
    """The value of a node in terms of that of another one."""
    if index == base:
        return 0.0, 1.0
    node = flow.nodes[index]
    operands = _operands(node)
    if operands is None or node.shape != flow.nodes[base].shape:
        return None
    parts: list[Expression] = []
    for operand in operands:
        part = (
            _expression(operand.node, base, flow) if isinstance(operand, Ref) else (float(operand),)
        )
        if part is None:
            return None
        parts.append(part)
    return _RULES[node.operation](parts, float(node.argument("alpha", 1) or 1))


def _times(first: Expression, second: Expression) -> Expression | None:
    if isinstance(first, Gate):
        first, second = second, first
    if isinstance(first, Gate) or (isinstance(second, Gate) and len(first) > 1):
        return None
    if isinstance(second, Gate):
        return second._replace(shift=second.shift * first[0], scale=second.scale * first[0])
    product: Polynomial = tuple(map(float, np.polynomial.polynomial.polymul(first, second)))
    return product if len(product) <= _DEGREE + 1 else None


def _plus(first: Expression | None, second: Expression | None) -> Expression | None:
    if isinstance(first, Gate):
        first, second = second, first
    if first is None or second is None or isinstance(first, Gate):
        return None
    if isinstance(second, Gate):
        return second._replace(shift=second.shift + first[0]) if len(first) == 1 else None
    return tuple(map(float, np.polynomial.polynomial.polyadd(first, second)))


def _sum(weights: Callable[[float], tuple[float, float]]) -> Any:
    def rule(parts: list[Expression], alpha: float) -> Expression | None:
        return _plus(*(_times(part, (w,)) for part, w in zip(parts, weights(alpha), strict=True)))

    return rule


def _power(parts: list[Expression], alpha: float) -> Expression | None:
    base, exponent = parts
    if isinstance(base, Gate) or exponent not in ((2.0,), (3.0,)):
        return None
    square = _times(base, base)
    return square if exponent == (2.0,) or square is None else _times(square, base)


def _quotient(parts: list[Expression], alpha: float) -> Expression | None:
    divisor = parts[1]
    constant = not isinstance(divisor, Gate) and len(divisor) == 1 and divisor[0] != 0
    return _times(parts[0], (1 / divisor[0],)) if constant else None


def _squashed(name: str) -> Any:
    def rule(parts: list[Expression], alpha: float) -> Expression | None:
        inner = parts[0]
        return None if isinstance(inner, Gate) else Gate(0.0, 1.0, name, inner)

    return rule


_RULES: dict[str, Callable[[list[Expression], float], Expression | None]] = {
    "mul": lambda parts, alpha: _times(*parts),
    "div": _quotient,
    "add": _sum(lambda alpha: (1.0, alpha)),
    "sub": _sum(lambda alpha: (1.0, -alpha)),
    "rsub": _sum(lambda alpha: (-alpha, 1.0)),
    "pow": _power,
    "square": lambda parts, alpha: _times(parts[0], parts[0]),
    "neg": lambda parts, alpha: _times(parts[0], (-1.0,)),
    **{name: _squashed(name) for name in ("tanh", "sigmoid", "erf")},
}


# --- The largest slope ------------------------------------------------------------------------

_LIMITS = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "erf": (-1.0, 1.0)}
# With their derivatives.
_SQUASH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "tanh": (torch.tanh, lambda p: 1 - p.tanh().square()),
    "sigmoid": (torch.sigmoid, lambda p: p.sigmoid() * (-p).sigmoid()),
    "erf": (torch.erf, lambda p: 2 / math.sqrt(math.pi) * (-p.square()).exp()),
}


@lru_cache(maxsize=64)
def _steepest(
    factor: float, shift: float, scale: float, squash: str, inner: Polynomial
) -> float | None:
    """A bound on the slope of `a x (b + g s(p(x)))`, everywhere.

    The slope is `a (b + g s(p) + g x p' s'(p))`. On a cell of the line it is at most what it is on
    its left end, plus the width times the largest second derivative, which is at most
    `a g e^-|p| (4 (2 |p'| + |x p''|) + 8 |x| p'^2)`, since `|s'| <= 4 e^-|p|` and
    `|s''| <= 8 e^-|p|` for each of the three. Beyond all cells the last term is as good as none.
    """
    end = _flat_from(inner)
    if end is None or not all(map(math.isfinite, (factor, shift, scale, *inner))):
        return None
    x = np.linspace(-end, end, _CELLS + 1)
    width, size = 2 * end / _CELLS, np.abs(x) + 2 * end / _CELLS
    polyval, polyder = np.polynomial.polynomial.polyval, np.polynomial.polynomial.polyder
    p, first = polyval(x, inner), polyval(x, polyder(inner))
    reach = polyval(size, np.abs(polyder(inner)))
    bend = polyval(size, np.abs(polyder(inner, 2)))
    decay = np.exp(np.minimum(width * reach - np.abs(p), 0))
    second = scale * decay * (4 * (2 * reach + size * bend) + 8 * size * reach**2)
    squashed, steepness = (f(torch.from_numpy(p)).numpy() for f in _SQUASH[squash])
    slope = shift + scale * squashed + scale * x * first * steepness
    most = float(np.max(np.abs(slope) + width * np.abs(second)))
    far = max(abs(shift + scale * limit) for limit in _LIMITS[squash])
    return abs(factor) * (max(most, far) + 1e-12 * (abs(shift) + abs(scale)))


def _flat_from(inner: Polynomial) -> float | None:
    """From where on `|p|` is large on both sides: its highest term outweighs the others."""
    degree = len(inner) - 1
    if degree < 1:
        return None
    end = 1e-6
    while abs(inner[-1]) * end**degree < _FLAT + sum(
        abs(c) * end**k for k, c in enumerate(inner[:-1])
    ):
        end *= 1.1
        if end > 1e9:
            return None
    return end
