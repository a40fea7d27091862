"""Clipping a convolution on a torus, frequency by frequency.

On a torus the constraint `||M(W)|| <= c` splits into one for each frequency, `||S(f)|| <= c`,
while W itself is a small kernel: its symbols fill a small subspace of all symbols. The nearest
point of two convex sets' intersection is found by Douglas and Rachford's splitting: in turn,
clip the singular values at every frequency, and return to the kernels, in the metric of the
true layer. Its one parameter is in units in which the projection onto kernels is the identity.

The result solves the layer's own problem for circular padding on images of at most 14 pixels a
side; larger ones are sampled, since symbols are smooth. With zero padding the torus is a little
larger than the image. Both are a start from which little is left to do.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._clipping.newton import Projected
from spectralclip._common import Shape
from spectralclip._linalg import GramSVD, folded_frequencies, symbols, tap_waves
from spectralclip._operators import ConvMap


class SplittingSettings(NamedTuple):
    """Measured on layers of 64 to 512 channels, trained and random."""

    rho: float = 12.0  # the splitting's parameter; ADMM with a small one, Dykstra, FISTA: slower
    relaxation: float = 1.7  # of each step, between 1 and 2
    # 64 channels on 16 x 16 came within 1.011 of the least distance after 8 of them and within
    # 1.007 after 10 on the larger grid, where Newton steps alone leave 1.036.
    iterations: int = 10
    # Symbols are smooth: a grid of 17 gave 1.007 in 1.35 s where one of 10 gave 1.011 in 0.57 s.
    largest_side: int = 14
    # At bounds above this share of the norm few cuts do it, and the torus is too blunt.
    least_cut: float = 0.85
    # With zero padding on smaller images borders are everywhere: no torus is near, unless there are
    # so many channels (512 on 4 x 4: 9 s, where Newton steps take 30 s).
    least_side: int = 8
    wide: int = 128


SPLITTING = SplittingSettings()


@final
class TorusSymbols:
    """The linear map from kernels to the symbols on a torus, and its transpose."""

    def __init__(self, conv: ConvMap, sides: Shape) -> None:
        geometry, weight = conv.geometry, conv.weight
        frequencies, counts = folded_frequencies(sides, geometry.stride)
        steps = geometry.stride, geometry.dilation, geometry.before
        waves = tap_waves(tuple(weight.shape[2:]), sides, frequencies, *steps)
        single = weight.dtype == torch.float32
        self._waves = waves.to(weight.device, torch.complex64 if single else torch.complex128)
        self._counts = counts.to(weight.device, weight.dtype)
        self._groups, self._shape = geometry.groups, weight.shape
        # The transpose after the map is this multiple of the identity.
        self.gain = float(math.prod(s // t for s, t in zip(sides, geometry.stride, strict=True)))

    def forward(self, weight: Tensor) -> Tensor:
        """`(groups, f, c_out, aliases * c_in)`."""
        return symbols(weight, self._waves, self._groups)

    def adjoint(self, symbol: Tensor) -> Tensor:
        """Back to a kernel: each frequency counts as often as it stands for another one."""
        frequencies, aliases, taps = self._waves.shape
        c_in = self._shape[1]
        parts = symbol.reshape(self._groups, frequencies, -1, aliases, c_in)
        parts = (parts * self._counts[:, None, None, None]).permute(1, 3, 0, 2, 4)
        columns = parts.reshape(frequencies * aliases, -1)
        flat = self._waves.reshape(-1, taps)
        kernel = columns.real.T @ flat.real + columns.imag.T @ flat.imag
        return kernel.reshape(self._shape)


def clip_on_torus(
    conv: ConvMap, sides: Shape, max_norm: float, iterations: int = SPLITTING.iterations
) -> Projected:
    """The nearest kernel within the bound on a torus, nearly; what it is on the layer is open."""
    rho = SPLITTING.rho
    symbols = TorusSymbols(conv, sides)
    weight, shape = conv.weight, conv.weight.shape
    gram = conv.tap_gram()
    gram = gram / gram.diagonal().max()
    identity = torch.eye(gram.shape[0], dtype=torch.float64, device="cpu")
    inverse = torch.linalg.inv(gram + rho * identity).to(weight.device, weight.dtype)
    gram = gram.to(weight.device, weight.dtype)

    def on_taps(kernel: Tensor, matrix: Tensor) -> Tensor:
        return (kernel.reshape(-1, matrix.shape[0]) @ matrix).reshape(shape)

    pull = on_taps(weight, gram)
    image = symbols.forward(weight)
    over = GramSVD(image).excess(max_norm)
    state = image - over + (2 / rho) * over
    kernel = weight
    for _ in range(iterations):
        over = GramSVD(state).excess(max_norm)
        inside = state - over
        # The kernel nearest to the reflection of the state in the clipped set.
        back = symbols.adjoint(inside - over) * (rho / symbols.gain)
        kernel = on_taps(pull + back, inverse)
        state = state + SPLITTING.relaxation * (symbols.forward(kernel) - inside)
    rows, columns = sorted(image.shape[-2:])
    # A complex multiplication is four real ones; a Hermitian eigenproblem about 9 n^3 of them.
    each = 8.0 * (2 * rows * rows * columns + 9 * rows**3) + 32.0 * gram.shape[0] * rows * columns
    flops = (iterations + 1) * math.prod(image.shape[:2]) * each
    return Projected(kernel, math.nan, 0, iterations, False, flops=flops)


def torus_sides(conv: ConvMap) -> Shape | None:
    """The torus on which to clip; None where the layer is not near any."""
    geometry, sides = conv.geometry, []
    if geometry.mode not in ("zeros", "circular"):
        return None
    wraps, wide = geometry.mode == "circular", conv.weight.shape[1] >= SPLITTING.wide
    axes = zip(conv.source.shape[1:], geometry.stride, conv.extent, strict=True)
    for size, stride, extent in axes:
        least = max(SPLITTING.least_side, 2 * extent)
        is_fit = size % stride == 0 if wraps else size >= least or wide
        if not is_fit:
            return None
        side = max(min(size if wraps else size + stride, SPLITTING.largest_side), extent)
        sides.append(side + -side % stride)
    return tuple(sides)
