"""The Lipschitz constants of functions that act on each number by itself.

Each is the largest slope of the function. Those that are no simple fractions are the slope at the
zero of the second derivative, computed to more digits than a float has, and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from spectralclip._lipschitz._flow import Node

# The largest slopes, attained at
GELU = 1.1289041451851549  # x = sqrt(2)
GELU_TANH = 1.1289930686587719  # x = 1.418504...
SILU = 1.0998393201288670  # x = 2.399357...
MISH = 1.0884981612517280  # x = 1.490571...

# A jump of softplus at its threshold that is no more than rounding.
_ROUNDING = 1e-6

_ONE = (
    *("relu", "relu6", "tanh", "hardtanh", "clamp", "clamp_min", "clamp_max", "abs", "sin", "cos"),
    *("softshrink", "log_sigmoid_forward", "atan", "arctan", "asinh", "arcsinh", "nan_to_num"),
    *("softsign", "tanhshrink"),
)


def _elu(node: Node) -> float:
    """`scale * x` above zero, `scale * alpha * (exp(c x) - 1)` below: steep where c < 0."""
    alpha, scale = float(node.argument("alpha", 1)), float(node.argument("scale", 1))
    inner = float(node.argument("input_scale", 1))
    if inner < 0 and alpha != 0 and scale != 0:
        return math.inf
    return abs(scale) * max(1.0, abs(alpha * inner))


def _rrelu(node: Node) -> float:
    lower, upper = float(node.argument("lower")), float(node.argument("upper"))
    if node.argument("training"):
        return math.inf
    return max(1.0, abs(lower + upper) / 2)


def _softplus(node: Node) -> float:
    """Slope `sigmoid(beta x)`; at its threshold torch jumps to `x` itself."""
    beta, threshold = float(node.argument("beta", 1)), float(node.argument("threshold", 20))
    jump = math.log1p(math.exp(-threshold)) / abs(beta) if threshold > -700 else math.inf
    return 1.0 if beta > 0 and jump <= _ROUNDING else math.inf


def _prelu(node: Node) -> float:
    slopes = node.argument("weight")
    if not isinstance(slopes, Tensor) or slopes.numel() == 0:
        return math.inf
    return max(1.0, float(slopes.abs().max()))


def _threshold(node: Node) -> float:
    """`x` above the threshold, a value below: a jump unless they meet."""
    return 1.0 if float(node.argument("threshold")) == float(node.argument("value")) else math.inf


def _power(node: Node) -> float:
    exponent = node.argument("exponent")
    if isinstance(exponent, Tensor):
        return 1.0 if bool((exponent == 1).all()) else math.inf
    return 1.0 if exponent == 1 else math.inf


def _dropout(node: Node) -> float:
    """Dropout trains where it is told so, and where it is told nothing."""
    return 1.0 if node.argument("train") is False else math.inf


CONSTANTS: dict[str, float | Callable[[Node], float]] = {
    **dict.fromkeys(_ONE, 1.0),
    "leaky_relu": lambda node: max(1.0, abs(float(node.argument("negative_slope", 0.01)))),
    "elu": _elu,
    # Below zero its slope is exp(x / alpha).
    "celu": lambda node: 1.0 if float(node.argument("alpha", 1)) > 0 else math.inf,
    "gelu": lambda node: GELU_TANH if node.argument("approximate") == "tanh" else GELU,
    "silu": SILU,
    "mish": MISH,
    "softplus": _softplus,
    "sigmoid": 0.25,
    "hardswish": 1.5,
    "hardsigmoid": 1 / 6,
    "erf": 2 / math.sqrt(math.pi),
    "erfc": 2 / math.sqrt(math.pi),
    "_prelu_kernel": _prelu,
    "rrelu_with_noise": _rrelu,
    "threshold": _threshold,
    "pow": _power,
    "native_dropout": _dropout,
}
"""By the name of torch's operation: the largest slope, infinite where there is none."""


def slope(node: Node) -> float | None:
    """The largest slope of an activation; None for what is not one."""
    known = CONSTANTS.get(node.operation)
    return known(node) if callable(known) else known
