"""Norms of vectors, standard deviations, and layers that divide by them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import wide
from spectralclip._lipschitz.chain_norms import Norms
from spectralclip._lipschitz.flow import Flow, Node
from spectralclip._lipschitz.rules import Rule, by_factor, only
from spectralclip._operators import batch_norm_scale


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


def training_batch_norm(node: Node, flow: Flow, norms: Norms) -> Rule:
    """It uses the statistics of its input, whatever running ones it is given to update."""
    return by_factor(statistics_factor)(node, flow, norms)


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
