"""The matrix of a layer, written down from the definition of a convolution.

Along one axis, tap t of the window of output o reads the input at
`o * stride - low + t * dilation`; where that lies outside, the padding says what is read in its
place. A tap is a 0-1 matrix for each axis, and the layer the sum over all taps of the Kronecker
product of the tap's weights with these.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

from conformance.layer import Layer


def matrix(layer: Layer) -> sparse.csr_array:
    """The matrix in float64, both sides flattened with the channels first."""
    if layer.axes == 0:
        return sparse.csr_array(layer.weight.astype(np.float64))
    if layer.transposed:  # of the convolution that leads back, with the same weight
        return sparse.csr_array(_convolution(layer, layer.out_shape, layer.in_shape).T)
    return _convolution(layer, layer.in_shape, layer.out_shape)


def _convolution(layer: Layer, source: Any, target: Any) -> sparse.csr_array:
    weight = layer.weight.astype(np.float64)
    total = sparse.csr_array((int(np.prod(target)), int(np.prod(source))))
    for tap in product(*map(range, weight.shape[2:])):
        groups = np.split(weight[(..., *tap)], layer.groups)
        reads = [
            _reads(layer, axis, place, source[1 + axis], target[1 + axis])
            for axis, place in enumerate(tap)
        ]
        channels = sparse.block_diag([sparse.csr_array(group) for group in groups])
        total = total + sparse.csr_array(sparse.kron(channels, reduce(sparse.kron, reads)))
    return total


def _reads(layer: Layer, axis: int, tap: int, n: int, outputs: int) -> sparse.csr_array:
    """Which position each output reads by a tap, as a matrix of zeros and ones."""
    rows = np.arange(outputs)
    (low, _), step = layer.padding[axis], layer.stride[axis]
    at = rows * step - low + tap * layer.dilation[axis]
    inside = (at >= 0) & (at < n)
    if layer.padding_mode == "circular":
        at = at % n
    elif layer.padding_mode == "replicate":
        at = at.clip(0, n - 1)
    elif layer.padding_mode == "reflect":
        at = (n - 1) - np.abs((n - 1) - np.abs(at))
    else:
        rows, at = rows[inside], at[inside]
    return sparse.csr_array((np.ones(len(rows)), (rows, at)), shape=(outputs, n))
