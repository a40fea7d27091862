"""Strips of a large image: a bound on a convolution's norm from pieces of it.

Let `A = M M^T` for a convolution M. Along one spatial axis of the output, with positions
`0 <= s < n`, its blocks `A_st` vanish for `|s - t| > w`. Take a window `h_0, ..., h_(W-1)` with
`sum h_j^2 = 1`, its autocorrelation `rho(d) = sum_j h_j h_(j+d)`, positive for `|d| <= w < W`,
and `A'_st = A_st / rho(s - t)`. For each shift o, from `1 - W` to `n - 1`, let `H_o` multiply
position s by `h_(s-o)`, which is zero outside the window. Every position meets each entry of h
once, and a pair of positions meets each product `h_j h_(j+d)` once, so that

    sum_o H_o^2 = I    and    sum_o H_o A' H_o = A.

Hence `x^T A x = sum_o (H_o x)^T A' (H_o x) <= max_o lambda_o * sum_o ||H_o x||^2`, that is

    lambda_max(A) <= max_o lambda_o,

where `lambda_o` is the largest eigenvalue of A' on the positions that the window at o covers.
(It is positive, or A is zero: the diagonal blocks of A' are those of A, as `rho(0) = 1`.) A
window that reaches over an end covers a part of what the first or the last whole one does, and
its eigenvalues are no larger. Of the whole windows, all whose outputs read no padding along the
axis have the same matrix, since the convolution only shifts there: one of them stands for all.
What is left is that one, and a few at each end.

The sine window makes `rho(d)` as close to one as the width allows, about `1 - (pi d / W)^2 / 2`,
and with it the bound on the norm: the excess falls with the square of the width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spectralclip._bounds.banded import Shortened
from spectralclip._common import Shape
from spectralclip._operators import ConvMap, TransposedMap, read_positions

# Lanczos steps for a guess at a strip's largest eigenvalue: good to about three digits.
_STEPS = 40


@final
@dataclass(frozen=True)
class Strip:
    """A' on one window.

    Attributes:
        conv: The convolution to the outputs in the window: A there is `conv conv^T`.
        axis: The windowed axis, counted in the shape with its channels.
        factors: `1 / rho(d)` for `d = 0, ..., w`.
    """

    conv: ConvMap
    axis: int
    factors: Tensor

    @property
    def weights(self) -> Tensor:
        """What each pair of positions of the window is multiplied by."""
        width = self.conv.target.shape[self.axis]
        places = torch.arange(width, device="cpu")
        distances = (places[:, None] - places).abs()
        inside = distances < len(self.factors)
        return torch.where(inside, self.factors[distances.clamp_max(len(self.factors) - 1)], 0.0)

    def apply(self, rows: Tensor) -> Tensor:
        """`A' x` for one flat row.

        With `1 / rho(d) = sum_k a_k cos(theta_k d)` for `|d| <= w`, A' is a sum of copies of A
        between diagonal cosines and sines of the position. The first and the last angle, zero
        and pi, have no sine.
        """
        reach = len(self.factors) - 1
        angles = torch.arange(reach + 1, dtype=torch.float64, device="cpu") * math.pi
        angles = angles / max(1, reach)
        taps = torch.arange(reach + 1, dtype=torch.float64, device="cpu")
        amplitudes = torch.linalg.solve(torch.cos(taps[:, None] * angles), self.factors)
        layout = self.conv.target
        places = torch.arange(layout.shape[self.axis], dtype=torch.float64, device="cpu")
        phases = angles[:, None] * places
        waves = torch.cat([phases.cos(), phases[1:-1].sin()]).to(rows)
        trailing = [1] * (len(layout.shape) - 1 - self.axis)
        waves = waves.reshape(-1, *[1] * self.axis, places.numel(), *trailing)
        spread = layout.to_rows(layout.to_tensor(rows) * waves)
        images = layout.to_tensor(self.conv.forward(self.conv.adjoint(spread)))
        scale = torch.cat([amplitudes, amplitudes[1:-1]]).to(rows)
        scale = scale.reshape(-1, *[1] * len(layout.shape))
        return layout.to_rows((images * waves * scale).sum(0, keepdim=True))


def sine_factors(width: int, bandwidth: int) -> Tensor:
    """`1 / rho(d)` for `d = 0, ..., bandwidth`, in float64."""
    steps = torch.arange(1, width + 1, dtype=torch.float64, device="cpu")
    window = torch.sin(math.pi * steps / (width + 1))
    window = window / window.norm()
    overlaps = [torch.dot(window[: width - d], window[d:]) for d in range(bandwidth + 1)]
    return 1 / torch.stack(overlaps)


def strips(conv: ConvMap, axis: int, width: int, bandwidth: int) -> list[Strip] | None:
    """The windows that bound a convolution, or None where some window reads far outside itself.

    Args:
        conv: The convolution.
        axis: The axis to window, counted in the shape with its channels.
        width: Outputs in a window: above the bandwidth, below the length of the axis.
        bandwidth: Outputs further apart than this along the axis share no input.
    """
    count = conv.target.shape[axis]
    if not bandwidth < width < count:
        return None
    factors = sine_factors(width, bandwidth)
    found: list[Strip] = []
    plain = False
    for start in range(count - width + 1):
        first, last = _span(conv, axis, start, width)
        inside = first >= 0 and last <= conv.source.shape[axis]
        if inside and plain:
            continue
        plain = plain or inside
        part = _cropped(conv, axis, start, width)
        if part is None:
            return None
        found.append(Strip(part, axis, factors))
    return found


def shortened(conv: ConvMap, axis: int, bandwidth: int) -> Shortened | None:
    """A shorter image with all blocks of `M M^T`, along an axis of the output.

    Outputs that read no padding along the axis have blocks that depend on their distance alone.
    It is enough to keep those at both ends and, between them, the bandwidth and one more.
    """
    size, count = conv.source.shape[axis], conv.target.shape[axis]
    spans = [_span(conv, axis, place, 1) for place in range(count)]
    plain = [place for place, (first, last) in enumerate(spans) if first >= 0 and last <= size]
    inserted = len(plain) - bandwidth - 1
    if inserted < 1:
        return None
    removed = inserted * conv.geometry.stride[axis - 1]
    # What outputs up to the middle and the bandwidth read must not move, and what those after the
    # middle read must move with the far end.
    here, there = _reads(conv, axis, size - removed), _reads(conv, axis, size)
    low = spans[plain[0] + bandwidth][1] + conv.geometry.before[axis - 1]
    high = spans[plain[0] + 1][0] + conv.geometry.before[axis - 1]
    moved = there[high + removed :] - removed
    if not (torch.equal(here[:low], there[:low]) and torch.equal(here[high:], moved)):
        return None
    shape = _with(conv.source.shape, axis, size - removed)
    short = ConvMap(conv.weight, conv.geometry, shape, channels_last=conv.source.channels_last)
    return Shortened(TransposedMap(short), plain[0], inserted)


def _reads(conv: ConvMap, axis: int, size: int) -> Tensor:
    """For each padded position, which input it holds; zeros of the padding hold one outside."""
    before, after = conv.geometry.before[axis - 1], conv.geometry.after[axis - 1]
    if conv.geometry.mode == "zeros":
        return torch.arange(-before, size + after, device="cpu")
    return read_positions(conv.geometry.mode, before, size, after)


def _span(conv: ConvMap, axis: int, start: int, width: int) -> tuple[int, int]:
    """The input positions under some outputs, from the first to past the last; may lie outside."""
    geometry, taps = conv.geometry, conv.weight.shape[axis + 1]
    stride, dilation = geometry.stride[axis - 1], geometry.dilation[axis - 1]
    first = start * stride - geometry.before[axis - 1]
    return first, first + (width - 1) * stride + dilation * (taps - 1) + 1


def _cropped(conv: ConvMap, axis: int, start: int, width: int) -> ConvMap | None:
    """Some outputs as a convolution of the inputs under them, padded where those end.

    None if the padding would have to read inputs that are not under these outputs, as it does
    on a torus.
    """
    size, geometry = conv.source.shape[axis], conv.geometry
    first, last = _span(conv, axis, start, width)
    low, high = max(0, first), min(size, last)
    before, after = low - first, last - high
    if low >= high:
        return None
    own = replace(
        geometry,
        before=_with(geometry.before, axis - 1, before),
        after=_with(geometry.after, axis - 1, after),
    )
    shape = _with(conv.source.shape, axis, high - low)
    part = ConvMap(conv.weight, own, shape, channels_last=conv.source.channels_last)
    here, there = _reads(part, axis, high - low) + low, _reads(conv, axis, size)
    offset = first + geometry.before[axis - 1]
    same = torch.equal(here, there[offset : offset + len(here)])
    return part if same and part.target.shape[axis] == width else None


def _with(shape: Shape, index: int, value: int) -> Shape:
    return (*shape[:index], value, *shape[index + 1 :])


def largest_eigenvalue(strip: Strip) -> float:
    """A guess, from below, at the largest eigenvalue of A' on a window."""
    size, device = strip.conv.target.size, strip.conv.weight.device
    generator = torch.Generator("cpu").manual_seed(0)
    row = torch.randn(1, size, generator=generator, dtype=torch.float64, device="cpu").to(device)
    basis, images = row[:0], row[:0]
    for _ in range(min(_STEPS, size)):
        before = float(row.norm())
        for _ in range(2):
            row = row - (row @ basis.T) @ basis
        length = float(row.norm())
        if length <= 1e-12 * before:  # an invariant space: what is left is rounding
            break
        basis = torch.cat([basis, row / length])
        row = strip.apply(basis[-1:])
        images = torch.cat([images, row])
    projected = images @ basis.T
    return float(torch.linalg.eigvalsh((projected + projected.T) / 2)[-1])
