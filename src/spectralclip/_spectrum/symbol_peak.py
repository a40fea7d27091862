"""The largest norm of a symbol over all frequencies of a torus, without looking at all of them.

For a fixed u, `p(w) = ||S(w)^H u||^2` is a trigonometric polynomial that is nowhere negative, of
some degree g on each axis. Let P bound `||S||` at all frequencies. By Szego's inequality the angle
`arccos(sqrt(p) / P)` changes at a rate of at most `g / 2`: the norm at a distance t from a
frequency where it is `P cos(a)` is at most `P cos(a - g t / 2)`, and on several axes what they
contribute adds up. (M. Riesz's lemma, that p falls off from its maximum no faster than
`cos(g t / 2)^2`, is the case in which P is attained.)

So the torus is cut into cells, and the symbol is looked at in the middle of each. The largest norm
found bounds P, and P tells which cells cannot hold a larger one. The others are halved on each
axis, until they are single frequencies, or until what is left open is little enough. Few cells are
left on each level where the norm has peaks; where it is flat, all are, and the search ends as if
it had looked everywhere at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import (
    alias_frequencies,
    below,
    largest_eigenvalue,
    on_host,
    plane_wave,
    symbols,
    tap_waves,
)
from spectralclip._operators import ConvMap

# What the first cells may reach, in radians of the angle above. They exclude nothing yet, and their
# halves little: with half as much, they would be four times as many and exclude as little.
FIRST_REACH = 0.5
CHUNK = 2**20  # numbers in a batch of symbols, or of waves: 16 MB in complex128
# Symbols that `large_value` tries, and power steps on each. On 20 random 3x3 convolutions of 16 to
# 128 channels on 8 and 16 pixels they gave 0.98 of the largest norm in the median, and 0.95 at
# worst; four symbols gave 0.93 at worst, 64 of them 0.97, and eight steps 0.97.
TRIED, POWER_STEPS = 16, 4


class Peak(NamedTuple):
    """The largest value found, where it is, and one that no frequency exceeds; up to rounding."""

    value: float
    upper: float
    group: int
    frequency: Shape  # of the outputs, in steps of the torus


@final
class Torus:
    """The symbols of a kernel on a torus of any size, without the phases that padding shifts.

    There are `groups` of them at each of `counts` output frequencies on an axis, of `block_shape`;
    an entry sums `taps` numbers. The squared norm is a trigonometric polynomial of these `degrees`.
    Symbols are divided by `scale`, which keeps their squares in range.
    """

    def __init__(self, conv: ConvMap, sides: Shape, stride: Shape, dilation: Shape) -> None:
        self._sides, self._stride, self._dilation = sides, stride, dilation
        self.groups, self._before = conv.geometry.groups, conv.geometry.before
        weight, kernel = on_host(conv.weight), conv.weight.shape[2:]
        self.scale = float(weight.abs().max()) or 1.0
        self._weights = (weight / self.scale).reshape(self.groups, -1, *weight.shape[1:])
        self.counts = tuple(n // s for n, s in zip(sides, stride, strict=True))
        self.degrees = tuple(map(_degree, kernel, stride, dilation))
        aliases = math.prod(stride)
        self.block_shape = (self._weights.shape[1], self._weights.shape[2] * aliases)
        self.taps = math.prod(kernel) * aliases
        self.application_work = float(weight.numel() * math.prod(self.counts))

    @property
    def count(self) -> int:
        """How many symbols there are, one of each conjugate pair."""
        alone = math.prod(2 - n % 2 for n in self.counts)
        return self.groups * (math.prod(self.counts) + alone) // 2

    def symbols_at(self, group: int, frequencies: Tensor) -> Tensor:
        """The symbols of a group at some frequencies, over the scale: `(f, rows, columns)`."""
        kernel, zeros = tuple(self._weights.shape[3:]), (0,) * len(self._sides)
        waves = tap_waves(kernel, self._sides, frequencies, self._stride, self._dilation, zeros)
        return symbols(self._weights[group], waves)[0]

    def leading_mode(self, peak: Peak, space: Shape, *, outputs: bool) -> Tensor:
        """The leading singular vector at a peak, its real part, on an image: `(channels, *space)`.

        On the side of the inputs it is the sum of the modes that the stride folds together.
        """
        at = torch.tensor([peak.frequency], device="cpu")
        left, _, right = torch.linalg.svd(self.symbols_at(peak.group, at)[0], full_matrices=False)
        if outputs:
            first = (0,) * len(space)
            return plane_wave(at, left[:, :1].T, self.counts, space, first).real
        waves = alias_frequencies(at, self._sides, self._stride)[0]
        amplitudes = right[0].conj().reshape(len(waves), -1)
        # The first window begins in the padding.
        return plane_wave(waves, amplitudes, self._sides, space, self._before).real


def _degree(taps: int, stride: int, dilation: int) -> int:
    """Of a symbol's squared norm: how many windows apart two that read the same phase can be.

    What the stride and the dilation have in common cancels.
    """
    common = math.gcd(stride, dilation)
    return (taps - 1) // (stride // common) * (dilation // common)


def symbol_degrees(conv: ConvMap) -> Shape:
    """Of the squared norm of a convolution's symbol, on each axis of its outputs."""
    return tuple(map(_degree, conv.weight.shape[2:], conv.geometry.stride, conv.geometry.dilation))


def enough_points(degrees: Shape, excess: float) -> Shape:
    """How many frequencies on each axis miss the supremum over all by at most `excess`, relatively.

    By Riesz's lemma N equispaced ones miss it by a factor of `cos(pi g / 2N)`, for each axis.
    """
    axes = max(1, sum(g > 0 for g in degrees))
    angle = math.acos((1 + excess) ** (-1 / axes))
    return tuple(max(g + 1, math.ceil(math.pi * g / (2 * angle))) for g in degrees)


def most_work(conv: ConvMap, excess: float) -> float:
    """Multiply-adds of a search up to `excess` that can rule nothing out, roughly."""
    points = enough_points(symbol_degrees(conv), excess)
    groups, aliases = conv.geometry.groups, math.prod(conv.geometry.stride)
    rows, columns = conv.weight.shape[0] // groups, conv.weight.shape[1] * aliases
    # A complex product takes four real ones, and a Cholesky factor about one more.
    return 5.0 * groups * math.prod(points) * rows * columns * min(rows, columns)


def symbol_peak(
    torus: Torus, excess: float = 0.0, *, everywhere: bool = False, known: float = 0.0
) -> Peak:
    """The largest norm of the symbols on a torus, with an upper end at most `excess` above it.

    `everywhere`: the upper end holds for the frequencies between those of the torus too, and comes
    as near as the torus is fine. `known`: what the largest norm is at least; a frequency is told
    above this only.
    """
    least = tuple(2 if everywhere and g else 1 for g in torus.degrees)
    widths = _first_widths(torus, least)
    cells = _first_cells(torus, widths)
    best = Peak(known, math.inf, 0, (0,) * len(widths))
    while True:
        reaches = _reaches(torus, widths)
        best, cells = _looked_at(torus, cells, widths, best, sum(reaches))
        if max(widths) == 1 or not len(cells):
            return best._replace(upper=best.value)
        # In the middle of all cells of this level, also of those left out, there is no larger one.
        ceiling = best.value / math.prod(map(math.cos, reaches))
        best = best._replace(upper=min(best.upper, ceiling))
        if best.upper <= (1 + excess) * best.value or widths == least:
            return best
        cells, widths = _halved(cells, widths, least)


def large_value(torus: Torus) -> float:
    """The norm of a symbol among the largest, at little cost: of a few, as power steps tell."""
    rows, columns = torus.block_shape
    cells = _first_cells(torus, (1,) * len(torus.counts))
    few = max(1, min(TRIED, CHUNK // max(rows * columns, torus.taps)))
    matrices = torus.symbols_at(0, cells[cells[:, 0] == 0][:: -(-len(cells) // few), 1:])
    flat = matrices if rows <= columns else matrices.mH
    rough = flat.to(torch.complex64)
    seeded = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(flat.shape[1], 1, generator=seeded, device="cpu").to(rough)
    vectors = start.expand(len(flat), -1, -1)
    for _ in range(POWER_STEPS):
        vectors = rough @ (rough.mH @ vectors)
        vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-30)
    largest = flat[int((rough.mH @ vectors).norm(dim=1).argmax())]
    square = float(torch.linalg.eigvalsh(largest @ largest.mH)[-1])
    return torus.scale * math.sqrt(max(0.0, square))


def _reaches(torus: Torus, widths: Shape) -> list[float]:
    """How far the angle may change between the middle of a cell and its ends, on each axis."""
    axes = zip(torus.degrees, torus.counts, widths, strict=True)
    return [math.pi * g * (width // 2) / n for g, n, width in axes]


def _first_widths(torus: Torus, least: Shape) -> Shape:
    """Powers of two, with the same angle for each axis; the least if little could be left out."""
    axes = max(1, sum(g > 0 for g in torus.degrees))
    widths = []
    for g, n, smallest in zip(torus.degrees, torus.counts, least, strict=True):
        most = 2 * FIRST_REACH / axes * n / (math.pi * g) if g else 1.0
        widths.append(max(smallest, 2 ** max(0, math.floor(math.log2(most)))))
    return tuple(widths) if max(widths) > 2 else least


def _first_cells(torus: Torus, widths: Shape) -> Tensor:
    """The group and the first frequency of each cell, `(cells, 1 + axes)`.

    A real kernel's symbols at `w` and `-w` are conjugates: half of the first axis is enough. On an
    axis of degree zero one frequency is.
    """
    ends = (torus.counts[0] // 2 + 1, *torus.counts[1:])
    starts = [
        torch.arange(0, end if g else 1, width, device="cpu")
        for end, width, g in zip(ends, widths, torus.degrees, strict=True)
    ]
    cells = torch.cartesian_prod(torch.arange(torus.groups, device="cpu"), *starts)
    return cells.reshape(-1, 1 + len(starts))


def _looked_at(
    torus: Torus, cells: Tensor, widths: Shape, best: Peak, reach: float
) -> tuple[Peak, Tensor]:
    """The largest value so far, and those cells that may hold a larger one."""
    middle = torch.tensor([width // 2 for width in widths], device="cpu")
    rows, columns = torus.block_shape
    chunk = max(1, CHUNK // max(rows * columns, torus.taps))
    scale, kept = torus.scale, [cells[:0]]
    for group in cells[:, 0].unique().tolist():
        for part in cells[cells[:, 0] == group].split(chunk):
            frequencies = part[:, 1:] + middle
            matrices = torus.symbols_at(group, frequencies)
            gram = matrices @ matrices.mH if rows <= columns else matrices.mH @ matrices
            known = (best.value / scale) ** 2
            square = largest_eigenvalue(gram, known)
            if square > known:
                # Less by as much as the largest one may be off.
                at = int(below(gram, (1 - 1e-9) * square).logical_not().nonzero()[0])
                place = tuple(frequencies[at].tolist())
                best = Peak(scale * math.sqrt(square), best.upper, group, place)
            if max(widths) > 1:
                kept.append(part[~below(gram, (_limit(best, reach) / scale) ** 2)])
    return best, torch.cat(kept)


def _limit(best: Peak, reach: float) -> float:
    """The value in the middle of a cell up to which there is none above the best in all of it."""
    if best.upper == math.inf or best.value == 0:
        return 0.0
    angle = reach + math.acos(min(1.0, best.value / best.upper))
    # Less by more than the rounding of the angle.
    return (1 - 1e-8) * best.upper * math.cos(angle) if angle < math.pi / 2 else 0.0


def _halved(cells: Tensor, widths: Shape, least: Shape) -> tuple[Tensor, Shape]:
    """The halves of all cells, on each axis on which they are wider than need be."""
    halves = tuple(max(width // 2, smallest) for width, smallest in zip(widths, least, strict=True))
    for axis, (width, half) in enumerate(zip(widths, halves, strict=True), 1):
        if half < width:
            later = cells.clone()
            later[:, axis] += half
            cells = torch.cat([cells, later])
    return cells, halves
