"""The Frobenius inner product of operators, as a metric on the weights.

For a layer that is linear in its weight, `||M(W)||_F^2 = <W, D W>` with `D = A* A`, where A takes
W to M(W). For a convolution D is a small matrix on the taps alone: `D[t, t']` counts the windows
in which the taps t and t' read the same position. Windows are products over the axes, and so is
D. Padding decides: zeros make border taps count less, reflected and replicated borders make
several taps read the same position.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from spectralclip._affine import Shape
from spectralclip._maps import ConvMap, read_positions
from spectralclip._precision import on_host, wide

WINDOWS = 2**14  # that are looked at together: a sequence may have millions


def tap_gram(conv: ConvMap) -> Tensor:
    """D on the taps of a convolution, `(taps, taps)` in float64 on the CPU."""
    gram = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    for axis in range(conv.weight.ndim - 2):
        gram = torch.kron(gram, _axis_gram(conv, axis))
    return gram


def _axis_gram(conv: ConvMap, axis: int) -> Tensor:
    geometry, size = conv.geometry, conv.source.shape[1 + axis]
    before, after = geometry.before[axis], geometry.after[axis]
    windows, taps = conv.target.shape[1 + axis], conv.weight.shape[2 + axis]
    offsets = torch.arange(taps, device="cpu") * geometry.dilation[axis]
    gram = torch.zeros(taps, taps, dtype=torch.float64, device="cpu")
    for some in torch.arange(windows, device="cpu").split(WINDOWS):
        padded = some[:, None] * geometry.stride[axis] + offsets
        if geometry.mode == "zeros":
            read = padded - before
            inside = (read >= 0) & (read < size)
        else:
            read = read_positions(geometry.mode, before, size, after)[padded]
            inside = torch.ones_like(read, dtype=torch.bool)
        same = (read[:, :, None] == read[:, None, :]) & inside[:, :, None] & inside[:, None, :]
        gram += same.sum(0)
    return gram


@final
class TapMetric:
    """`<W, D W>` for a convolution's weight `(c_out, c_in, *kernel)`.

    With a factor for each output channel (a batch norm behind the convolution) or each input
    channel, D is multiplied by their squares. Where a factor is zero, or taps read nothing at
    all, the operator does not depend on the weight: there the inverse leaves the weight alone.
    """

    def __init__(self, conv: ConvMap, rows: Tensor | None, columns: Tensor | None) -> None:
        self._gram = tap_gram(conv)
        values, vectors = torch.linalg.eigh(self._gram)
        kept = values > 1e-10 * values.max().clamp_min(1e-300)
        inverse = torch.where(kept, 1 / values.clamp_min(1e-300), 0.0)
        self._inverse = (vectors * inverse) @ vectors.T
        shape: Shape = tuple(conv.weight.shape)
        self._scale = torch.ones(shape[0], shape[1], dtype=torch.float64, device="cpu")
        if rows is not None:
            self._scale *= on_host(rows).square()[:, None]
        if columns is not None:
            groups = shape[0] // (columns.numel() // shape[1])
            each = on_host(columns).square().reshape(-1, shape[1])
            self._scale *= each.repeat_interleave(groups, 0)

    @property
    def largest(self) -> float:
        """The largest diagonal entry of D on the taps."""
        return float(self._gram.diagonal().max())

    def apply(self, weights: Tensor) -> Tensor:
        """`D W`, for one weight or a batch of them."""
        return self._on_taps(weights, self._gram, self._scale)

    def solve(self, weights: Tensor) -> Tensor:
        """`D^-1 W`, for one weight or a batch of them."""
        positive = self._scale > 0
        scale = torch.where(positive, 1 / self._scale.clamp_min(1e-300), 0.0)
        return self._on_taps(weights, self._inverse, scale)

    def norm(self, weight: Tensor) -> float:
        """`||M(W)||_F`."""
        exact = wide(weight)
        return math.sqrt(max(0.0, float(torch.sum(exact * self.apply(exact)))))

    def _on_taps(self, weights: Tensor, matrix: Tensor, scale: Tensor) -> Tensor:
        flat = weights.reshape(-1, *self._scale.shape, matrix.shape[0])
        result = (flat @ matrix.to(flat)) * scale.to(flat)[..., None]
        return result.reshape(weights.shape)
