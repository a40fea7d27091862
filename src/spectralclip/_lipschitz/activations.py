"""The Lipschitz constants of functions that act on each number by itself.

Each is the largest slope of the function. Those that are no simple fractions are the slope at the
zero of the second derivative, computed to more digits than a float has, and rounded up.
"""

from __future__ import annotations

import math

from torch import Tensor

from spectralclip._lipschitz.flow import Node

# The largest slopes, attained at
GELU = 1.1289041451851549  # x = sqrt(2)
GELU_TANH = 1.1289930686587719  # x = 1.418504...
SILU = 1.0998393201288670  # x = 2.399357...
MISH = 1.0884981612517280  # x = 1.490571...

# A jump of softplus at its threshold that is no more than rounding.
_ROUNDING = 1e-6


def elu(node: Node) -> float:
    """`scale * x` above zero, `scale * alpha * (exp(c x) - 1)` below: steep where c < 0."""
    alpha, scale = float(node.argument("alpha", 1)), float(node.argument("scale", 1))
    inner = float(node.argument("input_scale", 1))
    return abs(scale) * max(1.0, abs(alpha * inner)) if inner >= 0 else math.inf


def rrelu(node: Node) -> float:
    """In evaluation, the mean of the two slopes; in training, one that is drawn at random."""
    lower, upper = float(node.argument("lower")), float(node.argument("upper"))
    if node.argument("training"):
        return math.inf
    return max(1.0, abs(lower + upper) / 2)


def softplus(node: Node) -> float:
    """Slope `sigmoid(beta x)`; at its threshold torch jumps to `x` itself."""
    beta, threshold = float(node.argument("beta", 1)), float(node.argument("threshold", 20))
    if beta <= 0 or threshold < -700:
        return math.inf
    return 1.0 if math.log1p(math.exp(-threshold)) / beta <= _ROUNDING else math.inf


def prelu(node: Node) -> float:
    """The largest of its slopes."""
    slopes = node.argument("weight")
    if not isinstance(slopes, Tensor) or slopes.numel() == 0:
        return math.inf
    return max(1.0, float(slopes.abs().max()))


def threshold(node: Node) -> float:
    """`x` above the threshold, a value below: a jump unless they meet."""
    return 1.0 if float(node.argument("threshold")) == float(node.argument("value")) else math.inf


def power(node: Node) -> float:
    """The power of one alone."""
    exponent = node.argument("exponent")
    if isinstance(exponent, Tensor):
        return 1.0 if bool((exponent == 1).all()) else math.inf
    return 1.0 if exponent == 1 else math.inf


def dropout(node: Node) -> float:
    """Dropout trains where it is told so, and where it is told nothing."""
    return 1.0 if node.argument("train") is False else math.inf


def leaky_relu(node: Node) -> float:
    """The larger of its two slopes."""
    return max(1.0, abs(float(node.argument("negative_slope", 0.01))))


def celu(node: Node) -> float:
    """Below zero its slope is `exp(x / alpha)`."""
    return 1.0 if float(node.argument("alpha", 1)) > 0 else math.inf


def gelu(node: Node) -> float:
    """Exact, or by tanh."""
    return GELU_TANH if node.argument("approximate") == "tanh" else GELU
