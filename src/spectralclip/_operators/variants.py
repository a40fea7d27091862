"""A layer's operator once more: at other weights, or in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spectralclip._operators.affine import AffineFunction, Layer
from spectralclip._operators.build import build_maps
from spectralclip._operators.maps import AutogradMap
from spectralclip._operators.operator import LinearOperator, as_operator


def operator_at(
    function: AffineFunction, values: Mapping[str, Tensor] | None = None
) -> LinearOperator:
    """`M` at other parameter values, through the layer's own code; without any, as it is now.

    For layers that keep changing: what does not depend on the values is not checked again.
    """
    if values is None:
        moved = function.now()
        return LinearOperator(moved, build_maps(moved), transposed=False)
    moved = function.with_values(values)
    whole = AutogradMap(moved, 0, len(moved.stages))
    return LinearOperator(moved, [whole], transposed=False)


def in_float64(op: LinearOperator, layer: Layer | LinearOperator) -> LinearOperator:
    """A layer's operator in float64; `op`, which is it in the layer's own precision, if need be.

    Code that holds constants of one precision cannot be evaluated in another. That shows as errors
    of any kind: in its forward pass, in its backward pass, or in what it then computes.
    """
    if isinstance(layer, LinearOperator) or op.dtype == torch.float64:
        return op
    try:
        return as_operator(layer, op.in_shape, dtype=torch.float64)
    except (ValueError, TypeError, RuntimeError):
        return op
