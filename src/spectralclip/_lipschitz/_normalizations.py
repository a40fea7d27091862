"""Norms of vectors, standard deviations, and layers that divide by them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectralclip._lipschitz._flow import Node


def norm_factor(node: Node, count: int) -> float:
    """`||x||_p` of n entries moves by at most `n^(1/p - 1/2)` times as much, or as much."""
    order = node.argument("ord", 2)
    if not isinstance(order, (int, float)) or order < 1:
        return math.inf
    return max(1.0, math.pow(count, 1 / order - 0.5))


def deviation_factor(node: Node, count: int) -> float:
    """A standard deviation is a norm of centred entries over the root of their number."""
    correction = node.argument("correction", 1)
    left = count - float(1 if correction is None else correction)
    return 1 / math.sqrt(left) if left > 0 else math.inf


def statistics_factor(node: Node) -> tuple[float, str]:
    """Norms whose statistics are those of the input: steepest where all entries are alike."""
    weight, eps = node.argument("weight"), eps_of(node)
    if node.item not in (None, 0) or eps <= 0 or not node.reads("input"):
        return math.inf, ""
    largest = float(weight.abs().max()) if isinstance(weight, Tensor) else 1.0
    return largest / math.sqrt(eps), f"by its eps of {eps:g} alone, where all entries are alike"


def eps_of(node: Node) -> float:
    """What is added to a variance, or to a mean of squares."""
    for name in ("eps", "epsilon"):
        value = node.argument(name)
        if value is not None:
            return float(value)
    # What RMSNorm takes where it is given none: that of the precision in which it sums, which is
    # single precision for half ones.
    return torch.finfo(torch.float64 if node.dtype == torch.float64 else torch.float32).eps


def normalize_factor(node: Node) -> tuple[float, str]:
    """A division by the norm, which counts for no less than an eps."""
    eps = float(node.argument("eps", 1e-12))
    if float(node.argument("p", 2)) != 2 or eps <= 0 or node.argument("out") is not None:
        return math.inf, ""
    return 1 / eps, f"by its eps of {eps:g} alone, near zero"
