"""How the Lipschitz bound of an operation follows from those of its inputs.

A `Rule` says of a node by which factor each of its inputs enters, and how they are put together:

- affine: the node may be a part of a longer chain, which is then bounded as one operator;
- otherwise the bound of each input is settled before, and multiplied by the factor;
- or there is no bound, and the rule says why.

The functions here make rules for families of operations. Which operation belongs to which family,
and with which arguments, is in the table of `operations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from spectralclip._common import Shape
from spectralclip._linalg import wide
from spectralclip._lipschitz.chain_norms import Norms
from spectralclip._lipschitz.flow import Flow, Node, Ref, leaves

SWITCHES = "it depends on a comparison or an index made from the input, and jumps with it"
UNKNOWN = "no rule is known for this operation"
SEVERAL = "no rule is known for it where several of its arguments depend on the input"
DENOMINATOR = "it divides by a value that depends on the input"
PRODUCT = "it multiplies values that depend on the input with each other"
SAMPLED = "it multiplies by numbers drawn at random"
BITS = "it takes the bits of numbers for other numbers"
NOT_A_NUMBER = "a constant that it reads is NaN"
COMPLEX = "complex numbers are not followed"
TWICE = "it writes several values to one place, and which of them stays is not defined"
ATTENTION = "attention multiplies values that depend on the input with each other"
RECURRENT = "a recurrent layer multiplies its state with gates, in a way that is not known"
HOOKED = "it carries hooks, which may change what goes in and comes out: remove them for a bound"
_JUMPS = "it jumps: two inputs however close may have outputs far apart"
_STEEP = "its slope grows without end"

REASONS = {
    **dict.fromkeys(("sign", "sgn", "round", "floor", "ceil", "trunc", "frac"), _JUMPS),
    **dict.fromkeys(("hardshrink", "heaviside", "remainder", "fmod", "floor_divide"), _JUMPS),
    **dict.fromkeys(("threshold",), _JUMPS),
    **dict.fromkeys(("exp", "exp2", "expm1", "pow", "square", "sinh", "cosh", "tan"), _STEEP),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"), _STEEP),
    **dict.fromkeys(("acos", "asin", "atanh", "acosh", "logit", "var", "var_mean"), _STEEP),
    **dict.fromkeys(("prod", "cumprod", "linalg_det", "_cdist_forward"), PRODUCT),
    **dict.fromkeys(("native_dropout", "rrelu_with_noise"), SAMPLED),
    "div rounding_mode": "rounding jumps",
    "softplus": "its threshold is so low that it jumps there",
    "celu": "with a negative alpha, its slope grows without end",
    "elu": "with a negative input_scale, its slope grows without end",
    "glu": f"{PRODUCT}, and is Lipschitz on bounded inputs alone",
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_for_cpu", "_native_multi_head_attention"),
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_transformer_encoder_layer_fwd"),
            "_scaled_dot_product_attention_math",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        ATTENTION,
    ),
    **dict.fromkeys(
        (
            *("mkldnn_rnn_layer", "_cudnn_rnn", "lstm", "gru", "rnn_tanh", "rnn_relu"),
            *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),
        ),
        RECURRENT,
    ),
}
"""By the name of torch's operation; for all others it is that no rule is known."""


class Rule(NamedTuple):
    """How a node's bound follows from those of its inputs."""

    # For each use of an input, its index and the factor
    factors: tuple[tuple[int, float], ...] = ()
    affine: bool = False  # whether the node is an affine function of its inputs
    joint: bool = False  # whether the parts lie side by side, so that squares add up, not numbers
    # Whether it only rearranges or scales, so that a chain gains nothing from it
    plain: bool = False
    note: str = ""  # what to say of it
    reason: str = ""  # why there is no bound, where there is none

    def combined(self, bounds: Callable[[int], float]) -> float:
        parts = [times(factor, bounds(source)) for source, factor in self.factors]
        return math.hypot(*parts) if self.joint else math.fsum(parts)


RuleOf: TypeAlias = Callable[[Node, Flow, Norms], Rule]
"""Makes the rule for a node of which the arguments are known to be in the operation's domain."""

FactorOf: TypeAlias = Callable[[Node, Shape], float | tuple[float, str]]
"""The Lipschitz constant of a node whose one input has that shape, and what to say of it."""


def times(factor: float, bound: float) -> float:
    """A product in which nothing times anything is nothing."""
    return 0.0 if factor == 0 or bound == 0 else factor * bound


def only(node: Node, factor: float, note: str = "", **how: Any) -> Rule:
    return Rule(((node.inputs[0], factor),), note=note, **how)


def uses(value: Any) -> list[int]:
    """The inputs among arguments, as often as they occur."""
    return [leaf.node for leaf in leaves(value) if isinstance(leaf, Ref)]


def single(node: Node) -> bool:
    """Whether one argument alone depends on the input."""
    return len(uses((node.args, node.kwargs))) == 1


def _spread(node: Node, source: int, flow: Flow) -> float:
    """How an input that is broadcast to the shape of the output grows."""
    return math.sqrt(math.prod(node.shape) / max(1, math.prod(flow.nodes[source].shape)))


# --- Affine operations ---------------------------------------------------------------------


def rearranged(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Each output is another input or a constant: of norm one, or less if some are left out."""
    return only(node, 1.0, affine=True, plain=True) if single(node) else Rule(reason=SEVERAL)


def copied(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Each output is an input or a constant, but an input may be used several times."""
    if not single(node):
        return Rule(reason=SEVERAL)
    return only(node, norms.largest_count(node, node.inputs[0]), affine=True)


def measured(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Affine in all inputs together, with nothing simple to say of the norm."""
    factors = [(i, norms.of_operation(node, i).upper) for i in node.inputs]
    return Rule(tuple(factors), affine=True)


def product_of(*names: str) -> RuleOf:
    """Linear in each of these arguments: affine if only one of them depends on the input."""

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        several = sum(node.reads(name) for name in names) > 1
        return Rule(reason=PRODUCT) if several else measured(node, flow, norms)

    return rule


def quotient_by(name: str) -> RuleOf:
    """The same, over a denominator, which has to be constant."""

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        return Rule(reason=DENOMINATOR) if node.reads(name) else measured(node, flow, norms)

    return rule


def scaled(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Entry by entry times a constant, or over one: columns of a matrix that do not overlap.

    Thus the longest column is the norm.
    """
    divides = node.operation == "div"
    if divides and node.reads("other"):
        return Rule(reason=DENOMINATOR)
    if not single(node):
        return Rule(reason=PRODUCT)
    source = node.inputs[0]
    others = (node.argument("self"), node.argument("other"))
    constant = wide(torch.as_tensor(next(o for o in others if not isinstance(o, Ref))))
    constant = 1 / constant if divides else constant
    shape = flow.nodes[source].shape
    squares = constant.abs().square().expand(node.shape)
    factor = math.sqrt(float(squares.sum_to_size(shape).max())) if squares.numel() else 0.0
    plain = constant.numel() == 1 and math.prod(shape) == math.prod(node.shape)
    if not math.isfinite(factor):
        return Rule(reason="it multiplies by a constant that is not finite")
    return only(node, factor, affine=True, plain=plain)


# --- Several inputs ------------------------------------------------------------------------


def added(weighted: str) -> RuleOf:
    """A sum, in which the argument of that name is multiplied by `alpha`."""
    bare = "self" if weighted == "other" else "other"

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        weight = abs(float(node.argument("alpha", 1)))
        parts = [(i, _spread(node, i, flow)) for i in uses(node.argument(bare))]
        parts += [(i, weight * _spread(node, i, flow)) for i in uses(node.argument(weighted))]
        return Rule(tuple(parts), affine=True, plain=len(parts) == 1)

    return rule


def joined(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Parts side by side, each entry once for each time that its tensor is named."""
    factors = tuple((i, 1.0) for i in uses((node.args, node.kwargs)))
    return Rule(factors, affine=True, joint=True, plain=len(factors) == 1)


def mixed(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Each entry is one of those of its inputs, none of which is used twice."""
    return Rule(tuple((i, 1.0) for i in uses((node.args, node.kwargs))), joint=True)


def chosen(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Each entry is that of one input or the other, by a fixed mask."""
    factors = tuple((i, _spread(node, i, flow)) for i in uses((node.args, node.kwargs)))
    return Rule(factors, affine=True, joint=True)


def compared(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Each result moves by no more than that of its arguments that moves most."""
    factors = tuple((i, _spread(node, i, flow)) for i in uses((node.args, node.kwargs)))
    return Rule(factors, joint=True)


def weighted(node: Node, flow: Flow, norms: Norms) -> Rule:
    """Side by side, each input with a factor that is known already."""
    factors = zip(uses(node.args), node.kwargs["factors"], strict=True)
    return Rule(tuple(factors), joint=True, note=node.kwargs["note"])


# --- Bent ones -----------------------------------------------------------------------------


def pointwise(slope: float | Callable[[Node], float]) -> RuleOf:
    """Each number by itself; one that is broadcast counts as often as it is used."""

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        if not single(node):
            return Rule(reason=SEVERAL)
        steepest = slope(node) if callable(slope) else slope
        return _bent(node, steepest * max(1.0, _spread(node, node.inputs[0], flow)), "")

    return rule


def by_factor(factor_of: FactorOf) -> RuleOf:
    """Not affine, with a Lipschitz constant that follows from the arguments and the shape."""

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        if not single(node):
            return Rule(reason=SEVERAL)
        found = factor_of(node, flow.nodes[node.inputs[0]].shape)
        return _bent(node, *(found if isinstance(found, tuple) else (found, "")))

    return rule


def _bent(node: Node, factor: float, note: str) -> Rule:
    if not math.isfinite(factor):
        return Rule(reason=REASONS.get(node.operation, UNKNOWN))
    return only(node, factor, note)
