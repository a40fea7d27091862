"""What each operation may do to a Lipschitz bound.

A `Rule` says of a node by which factor each of its inputs enters, and how they are put together:

- affine: the node may be a part of a longer chain, which is then bounded as one operator;
- otherwise the bound of each input is settled before, and multiplied by the factor;
- or there is no bound, and the rule says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._explicit import is_plain
from spectralclip._lipschitz import _operations as ops
from spectralclip._lipschitz._activations import slope
from spectralclip._lipschitz._chain_norms import NoBoundError, Norms
from spectralclip._lipschitz._flow import Flow, Node, Ref, leaves
from spectralclip._lipschitz._normalizations import (
    deviation_factor,
    eps_of,
    norm_factor,
    normalize_factor,
    statistics_factor,
)
from spectralclip._lipschitz._pooling import adaptive_max_pool_factor, max_pool_factor
from spectralclip._precision import wide

_SWITCHES = "it depends on a comparison or an index made from the input, and jumps with it"
_UNKNOWN = "no rule is known for this operation"
_DENOMINATOR = "it divides by a value that depends on the input"
_PRODUCT = "it multiplies values that depend on the input with each other"
_SAMPLED = "it multiplies by numbers drawn at random"
_BITS = "it takes the bits of numbers for other numbers"
_NOT_A_NUMBER = "a constant that it reads is NaN"
_REARRANGING = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)


@final
@dataclass(frozen=True)
class Rule:
    """How a node's bound follows from those of its inputs.

    Attributes:
        factors: For each use of an input, its index and the factor.
        affine: Whether the node is an affine function of its inputs.
        joint: Whether the parts lie side by side, so that squares add up, not numbers.
        plain: Whether it only rearranges or scales, so that a chain gains nothing from it.
        note: What to say of it.
        reason: Why there is no bound, where there is none.
    """

    factors: tuple[tuple[int, float], ...] = ()
    affine: bool = False
    joint: bool = False
    plain: bool = False
    note: str = ""
    reason: str = ""

    def combined(self, bounds: Callable[[int], float]) -> float:
        """The bound of the node, from those of its inputs."""
        parts = [times(factor, bounds(source)) for source, factor in self.factors]
        return math.hypot(*parts) if self.joint else math.fsum(parts)


def times(factor: float, bound: float) -> float:
    """A product in which nothing times anything is nothing."""
    return 0.0 if factor == 0 or bound == 0 else factor * bound


def rule_of(node: Node, flow: Flow, norms: Norms) -> Rule:
    """The rule for a node."""
    if not node.inputs:
        return Rule(affine=True, joint=True, plain=True)
    reason = node.reason or _hopeless(node, flow)
    if reason:
        return Rule(reason=reason)
    try:
        for known in (_of_module, _linear, _product, _several, _bent):
            rule = known(node, flow, norms)
            if rule is not None:
                return rule
    except NoBoundError as error:
        return Rule(reason=f"its norm could not be bounded: {error}")
    return Rule(reason=ops.REASONS.get(node.operation, _UNKNOWN))


def _hopeless(node: Node, flow: Flow) -> str:
    """Why a node has no bound whatever its operation, if so."""
    types = [flow.nodes[index].dtype for index in node.inputs]
    if any(dtype.is_complex for dtype in (*types, node.dtype)):
        return "complex numbers are not followed"
    if not all(dtype.is_floating_point for dtype in types):
        return _SWITCHES
    if node.operation == "view" and node.dtype not in types:
        return _BITS
    if any(_is_nan(leaf) for leaf in leaves((node.args, node.kwargs))):
        return _NOT_A_NUMBER
    harmless = ops.SUMS | ops.JOINS | {"native_dropout", "rrelu_with_noise"}
    return _SAMPLED if node.random and node.operation not in harmless else ""


def _is_nan(constant: Any) -> bool:
    if isinstance(constant, Tensor) and constant.is_floating_point():
        wide = constant.float() if constant.element_size() < 2 else constant
        return bool(wide.isnan().any())
    return isinstance(constant, float) and math.isnan(constant)


def _only(node: Node, factor: float, note: str = "", **how: Any) -> Rule:
    """A rule for a node with one input."""
    return Rule(((node.inputs[0], factor),), note=note, **how)


def _uses(value: Any) -> list[int]:
    """The inputs among arguments, as often as they occur."""
    return [leaf.node for leaf in leaves(value) if isinstance(leaf, Ref)]


def _spread(node: Node, source: int, flow: Flow) -> float:
    """How an input that is broadcast to the shape of the output grows."""
    return math.sqrt(math.prod(node.shape) / max(1, math.prod(flow.nodes[source].shape)))


# --- Affine operations ---------------------------------------------------------------------


def _of_module(node: Node, flow: Flow, norms: Norms) -> Rule | None:
    if node.module is None:
        return None
    if len(_uses((node.args, node.kwargs))) != 1:
        return Rule(reason=_UNKNOWN)
    if is_plain(node.module, *_REARRANGING):
        return _only(node, 1.0, affine=True, plain=True)
    return _only(node, norms.of_operation(node, node.inputs[0]).upper, affine=True)


def _linear(node: Node, flow: Flow, norms: Norms) -> Rule | None:
    """What is linear in all of its inputs together."""
    single = len(_uses((node.args, node.kwargs))) == 1
    name = node.operation
    if name in ops.REARRANGE and single:
        return _only(node, 1.0, affine=True, plain=True)
    if name in ops.COPY and single:
        return _only(node, norms.largest_count(node, node.inputs[0]), affine=True)
    fixed = not any(node.reads(fixed) for fixed in ops.FIXED) and not node.argument("reduce")
    if name in ops.LINEAR and fixed:
        factors = [(i, norms.of_operation(node, i).upper) for i in node.inputs]
        return Rule(tuple(factors), affine=True)
    if name in ops.BATCH_NORMS and single and _fixed_statistics(node):
        return _only(node, _batch_norm_factor(node), affine=True)
    return None


def _fixed_statistics(node: Node) -> bool:
    """Whether a batch norm uses its running statistics."""
    trains = node.argument("training", node.argument("train", False))
    known = isinstance(node.argument("running_var"), Tensor) and node.reads("input")
    return not trains and known and node.item in (None, 0)


def _batch_norm_factor(node: Node) -> float:
    scale = torch.rsqrt(wide(node.argument("running_var")) + eps_of(node))
    weight = node.argument("weight")
    return float((scale if weight is None else scale * wide(weight)).abs().max())


def _product(node: Node, flow: Flow, norms: Norms) -> Rule | None:
    """Products and quotients with constants; with each other they have no bound."""
    name = node.operation
    names: tuple[str, ...]
    if name in ops.QUOTIENTS or name in ops.QUOTIENT_SUMS:
        names = ops.QUOTIENTS.get(name) or ops.QUOTIENT_SUMS[name]
        if node.argument("rounding_mode") is not None:
            return Rule(reason="rounding jumps")
        if node.reads(names[1]):
            return Rule(reason=_DENOMINATOR)
    elif name in ops.PRODUCTS:
        names = ops.PRODUCTS[name]
        if sum(node.reads(factor) for factor in names) > 1:
            return Rule(reason=_PRODUCT)
        if name.startswith("grid_sampler") and node.reads("grid"):
            return Rule(reason=_UNKNOWN)
    else:
        return None
    if name in ("mul", "div", "true_divide"):
        return _scaled(node, flow)
    factors = [(i, norms.of_operation(node, i).upper) for i in node.inputs]
    return Rule(tuple(factors), affine=True)


def _scaled(node: Node, flow: Flow) -> Rule:
    """Entry by entry times a constant: columns that do not meet, so that the longest counts."""
    source = node.inputs[0]
    others = (node.argument("self"), node.argument("other"))
    constant = wide(torch.as_tensor(next(o for o in others if not isinstance(o, Ref))))
    if node.operation != "mul":
        constant = 1 / constant
    shape = flow.nodes[source].shape
    squares = constant.abs().square().expand(node.shape)
    factor = math.sqrt(float(squares.sum_to_size(shape).max())) if squares.numel() else 0.0
    plain = constant.numel() == 1 and math.prod(shape) == math.prod(node.shape)
    if not math.isfinite(factor):
        return Rule(reason="it multiplies by a constant that is not finite")
    return _only(node, factor, affine=True, plain=plain)


# --- Several inputs ------------------------------------------------------------------------


def _several(node: Node, flow: Flow, norms: Norms) -> Rule | None:
    """Sums, and parts side by side."""
    name, uses = node.operation, _uses((node.args, node.kwargs))
    if name in ops.SUMS:
        weight = abs(float(node.argument("alpha", 1)))
        scaled = "self" if name == "rsub" else "other"
        parts = [(i, _spread(node, i, flow)) for i in _uses(node.argument(_twin(scaled)))]
        parts += [(i, weight * _spread(node, i, flow)) for i in _uses(node.argument(scaled))]
        return Rule(tuple(parts), affine=True, plain=len(parts) == 1)
    if name in ops.JOINS:
        whole = name != "written"
        factors = tuple((i, 1.0) for i in uses)
        return Rule(factors, affine=whole, joint=True, plain=whole and len(uses) == 1)
    if name in ops.PAIRWISE:
        if node.reads("condition"):
            return Rule(reason=_SWITCHES)
        factors = tuple((i, _spread(node, i, flow)) for i in uses)
        return Rule(factors, affine=name == "where", joint=True)
    if name in ("max", "min") and len(uses) > 1:
        return Rule(tuple((i, _spread(node, i, flow)) for i in uses), joint=True)
    return None


def _twin(name: str) -> str:
    return "self" if name == "other" else "other"


# --- Bent ones -----------------------------------------------------------------------------


def _bent(node: Node, flow: Flow, norms: Norms) -> Rule | None:
    """What is not affine and has one input, on which alone the rest of its arguments does not."""
    if len(_uses((node.args, node.kwargs))) != 1:
        return None
    found: tuple[float, str] | None
    steepest = slope(node)
    if steepest is not None:  # of each number; one that is broadcast counts as often
        found = steepest * max(1.0, _spread(node, node.inputs[0], flow)), ""
    else:
        found = _factor(node, flow.nodes[node.inputs[0]].shape)
    if found is None:
        return None
    factor, note = found
    if not math.isfinite(factor):
        return Rule(reason=ops.REASONS.get(node.operation, _UNKNOWN))
    return _only(node, factor, note)


def _factor(node: Node, source: tuple[int, ...]) -> tuple[float, str] | None:
    name = node.operation
    if name.startswith("max_pool") and node.item in (None, 0):
        factor = max_pool_factor(node)
        return factor, f"an entry is in up to {round(factor**2)} windows"
    if name.startswith("adaptive_max_pool") and node.item in (None, 0):
        factor = adaptive_max_pool_factor(source, node)
        return factor, f"an entry is in up to {round(factor**2)} windows"
    if name in ops.ORDERED:
        return 1.0, ""
    if name in ops.RUNNING:
        return math.sqrt(_size(source, node)), "each result may be the same entry"
    if name in ("_softmax", "_safe_softmax"):
        return (0.5 if _size(source, node) > 1 else 0.0), ""
    if name == "_log_softmax":
        count = _size(source, node)
        return (math.sqrt(count) if count > 1 else 0.0), f"the root of {count} classes"
    if name == "linalg_vector_norm":
        return norm_factor(node, math.prod(source) // max(1, math.prod(node.shape))), ""
    if name == "std":
        return deviation_factor(node, math.prod(source) // max(1, math.prod(node.shape))), ""
    if name in ops.BATCH_NORMS or name in ops.OTHER_NORMS:
        return statistics_factor(node)
    if name == "normalize":
        return normalize_factor(node)
    return None


def _size(source: tuple[int, ...], node: Node) -> int:
    """The length of the axis that an operation works along."""
    return source[node.argument("dim")] if source else 1
