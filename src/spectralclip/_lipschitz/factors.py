"""The Lipschitz constants of operations that are not affine, one function for each.

Those of functions that act on each number by itself are their largest slopes. Where these are no
simple fractions, they are the slope at the zero of the second derivative, computed to more digits
than a float has, and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import wide
from spectralclip._lipschitz.chain_norms import Norms
from spectralclip._lipschitz.flow import Flow, Node
from spectralclip._lipschitz.rules import TWICE, Rule, RuleOf, by_factor, measured, only
from spectralclip._operators import batch_norm_scale

# The largest slopes, attained at
GELU = 1.1289041451851549  # x = sqrt(2)
GELU_TANH = 1.1289930686587719  # x = 1.418504...
SILU = 1.0998393201288670  # x = 2.399357...
MISH = 1.0884981612517280  # x = 1.490571...

# A jump of softplus at its threshold that is no more than rounding: at torch's own threshold, where
# its value is 20, one rounding of float32 is 1e-6, and the jump is 2e-9.
_ROUNDING = 1e-6
_STEEPEST = -700.0  # a threshold below which the jump is beyond the range of float64


def elu(node: Node) -> float:
    """`scale * x` above zero, `scale * alpha * (exp(c x) - 1)` below: steep where c < 0."""
    alpha, scale = float(node.argument("alpha", 1)), float(node.argument("scale", 1))
    inner = float(node.argument("input_scale", 1))
    return abs(scale) * max(1.0, abs(alpha * inner)) if inner >= 0 else math.inf


def rrelu(node: Node) -> float:
    """In evaluation, the mean of the two slopes; in training, one that is drawn at random."""
    lower, upper = float(node.argument("lower")), float(node.argument("upper"))
    return math.inf if node.argument("training") else max(1.0, abs(lower + upper) / 2)


def softplus(node: Node) -> float:
    """Slope `sigmoid(beta x)`; at its threshold torch jumps to `x` itself."""
    beta, threshold = float(node.argument("beta", 1)), float(node.argument("threshold", 20))
    if beta <= 0 or threshold < _STEEPEST:
        return math.inf
    return 1.0 if math.log1p(math.exp(-threshold)) / beta <= _ROUNDING else math.inf


def prelu(node: Node) -> float:
    slopes = node.argument("weight")
    if not isinstance(slopes, Tensor) or slopes.numel() == 0:
        return math.inf
    return max(1.0, float(slopes.abs().max()))


def threshold(node: Node) -> float:
    """`x` above the threshold, a value below: a jump unless they meet."""
    return 1.0 if float(node.argument("threshold")) == float(node.argument("value")) else math.inf


def power(node: Node) -> float:
    exponent = torch.as_tensor(node.argument("exponent"))
    return 1.0 if bool((exponent == 1).all()) else math.inf


def dropout(node: Node) -> float:
    """Dropout trains where it is told so, and where it is told nothing."""
    return 1.0 if node.argument("train") is False else math.inf


def leaky_relu(node: Node) -> float:
    return max(1.0, abs(float(node.argument("negative_slope", 0.01))))


def celu(node: Node) -> float:
    """Below zero its slope is `exp(x / alpha)`."""
    return 1.0 if float(node.argument("alpha", 1)) > 0 else math.inf


def gelu(node: Node) -> float:
    return GELU_TANH if node.argument("approximate") == "tanh" else GELU


def running_factor(node: Node, source: Shape) -> tuple[float, str]:
    """Results up to each entry, all of which may be the same one."""
    return math.sqrt(_size(node, source)), "each result may be the same entry"


def softmax_factor(node: Node, source: Shape) -> float:
    """The Jacobian is `diag(p) - p p^T`, with absolute row sums up to 1/2."""
    return 0.5 if _size(node, source) > 1 else 0.0


def log_softmax_factor(node: Node, source: Shape) -> tuple[float, str]:
    """The Jacobian is `I - 1 p^T`, largest at the corners of the simplex."""
    count = _size(node, source)
    return (math.sqrt(count) if count > 1 else 0.0), f"the root of {count} classes"


def _size(node: Node, source: Shape) -> int:
    """The length of the axis that an operation works along."""
    return source[node.argument("dim")] if source else 1


def overlap(kernel: int, stride: int, dilation: int, windows: int) -> int:
    """Most windows on one axis that share an entry.

    Window i reads `i * stride + j * dilation` for j below `kernel`. Those that read one entry have
    j a multiple of `stride / g` apart, and i a multiple of `dilation / g`, where g is what stride
    and dilation have in common.
    """
    common = math.gcd(stride, dilation)
    taps, places = stride // common, dilation // common
    return min(-(-kernel // taps), -(-windows // places))


def adaptive_overlap(source: int, target: int) -> int:
    """The same where window i reads from `floor(i n / m)` up to `ceil((i + 1) n / m)`."""
    counts = [0] * source
    for i in range(target):
        for entry in range(i * source // target, -(-(i + 1) * source // target)):
            counts[entry] += 1
    return max(counts)


def max_pool_factor(node: Node, source: Shape) -> tuple[float, str]:
    """The square root of how many windows share an entry, at most.

    A maximum moves by no more than the entry of its window that moves most, so that the square of
    each entry's move counts once for each window that holds it. A peak in the middle of all windows
    that share it attains this.
    """
    axes = _axes(node)
    kernel = _each(node.argument("kernel_size"), axes)
    stride = _each(node.argument("stride") or kernel, axes)
    dilation = _each(node.argument("dilation", 1), axes)
    windows = node.shape[-axes:]
    sizes = zip(kernel, stride, dilation, windows, strict=True)
    return _shared(math.prod(overlap(*axis) for axis in sizes))


def adaptive_max_pool_factor(node: Node, source: Shape) -> tuple[float, str]:
    """The same for adaptive pooling of a tensor of shape `source`."""
    axes = _axes(node)
    sides = zip(source[-axes:], node.shape[-axes:], strict=True)
    return _shared(math.prod(adaptive_overlap(*side) for side in sides))


def _shared(windows: int) -> tuple[float, str]:
    return math.sqrt(windows), f"an entry is in up to {windows} windows"


def _axes(node: Node) -> int:
    """How many axes are pooled, which is in the operation's name."""
    return int(next(sign for sign in node.operation if sign.isdigit()))


def _each(sizes: int | Sequence[int], axes: int) -> tuple[int, ...]:
    values = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return values * axes if len(values) == 1 else values


def norm_factor(node: Node, source: Shape) -> float:
    """`||x||_p` of n entries moves by at most `n^(1/p - 1/2)` times as much, or as much."""
    count = _entries(node, source)
    order = node.argument("ord", 2)
    if not isinstance(order, (int, float)) or order < 1:
        return math.inf
    return max(1.0, math.pow(max(1, count), 1 / order - 0.5))


def _entries(node: Node, source: Shape) -> int:
    """How many entries each result is made of."""
    return math.prod(source) // max(1, math.prod(node.shape))


def deviation_factor(node: Node, source: Shape) -> float:
    """A standard deviation is a norm of centred entries over the root of their number."""
    correction = node.argument("correction", 1)
    left = _entries(node, source) - float(1 if correction is None else correction)
    return 1 / math.sqrt(left) if left > 0 else math.inf


def statistics_factor(node: Node, source: Shape) -> tuple[float, str]:
    """Norms whose statistics are those of the input: steepest where all entries are alike."""
    weight, eps = node.argument("weight"), eps_of(node)
    if eps <= 0:
        return math.inf, ""
    largest = float(weight.abs().max()) if isinstance(weight, Tensor) else 1.0
    return largest / math.sqrt(eps), f"by its eps of {eps:g} alone, where all entries are alike"


def batch_norm(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Affine where it uses its running statistics, which are constants."""
    variance = node.argument("running_var")
    if node.argument("training", False) or not isinstance(variance, Tensor):
        return by_factor(statistics_factor)(node, flow, norms)
    weight = node.argument("weight")
    gamma = None if weight is None else wide(weight)
    scale = batch_norm_scale(wide(variance), eps_of(node), gamma)
    factor = float(scale.abs().max()) if scale.numel() else 0.0
    if not math.isfinite(factor):
        return Rule(reason="its running variance and eps leave nothing to divide by")
    return only(node, factor, affine=True)


def eps_of(node: Node) -> float:
    """What is added to a variance, or to a mean of squares."""
    for name in ("eps", "epsilon"):
        value = node.argument(name)
        if value is not None:
            return float(value)
    # What RMSNorm takes where it is given none: that of the precision in which it sums, which is
    # single precision for half ones.
    return torch.finfo(torch.float64 if node.dtype == torch.float64 else torch.float32).eps


def normalize_factor(node: Node, source: Shape) -> tuple[float, str]:
    """A division by the norm, which counts for no less than an eps."""
    eps = float(node.argument("eps", 1e-12))
    if float(node.argument("p", 2)) != 2 or eps <= 0:
        return math.inf, ""
    return 1 / eps, f"by its eps of {eps:g} alone, near zero"


def _put_counts(node: Node, zeros: Tensor) -> Tensor:
    return torch.index_put(zeros, node.argument("indices"), zeros.new_ones(()), accumulate=True)


def _scatter_counts(node: Node, zeros: Tensor) -> Tensor:
    index = node.argument("index")
    return zeros.scatter_add(node.argument("dim"), index, zeros.new_ones(index.shape))


def _copy_counts(node: Node, zeros: Tensor) -> Tensor:
    dim, index = node.argument("dim"), node.argument("index")
    shape = list(zeros.shape)
    if shape:
        shape[dim] = index.numel()
    return zeros.index_add(dim, index, zeros.new_ones(shape))


def _written_once(counts: Callable[[Node, Tensor], Tensor]) -> RuleOf:
    """Values are written, unless they accumulate; `counts` says how many to each place."""

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        if not node.argument("accumulate", False):
            zeros = torch.zeros(node.shape, dtype=torch.float32, device=node.device)
            written = counts(node, zeros)
            if written.numel() and float(written.max()) > 1:
                return Rule(reason=TWICE)
        return measured(node, flow, norms)

    return rule


index_put = _written_once(_put_counts)
scatter = _written_once(_scatter_counts)
index_copy = _written_once(_copy_counts)
