"""Orthogonal starts: a weight whose layer keeps the norm of its inputs, as far as shapes allow.

A convolution whose kernel is zero but for one tap reads one position in each window. Where no
position is read twice, and the tap holds a matrix with orthonormal rows or columns, all singular
values of the layer are one or zero ("delta-orthogonal", Xiao et al. 2018). With a stride s, one tap
would skip positions. A block of s taps on each axis reads each of them once; then the layer is a
matrix of `c_in * s * s` columns, applied to windows that do not overlap.

Which block of taps is best follows from which positions it reads, for any padding and dilation.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectralclip._linalg import on_host
from spectralclip._operators import ConvMap, LinearMap

How: TypeAlias = Literal[
    "orthogonal matrix", "single tap", "taps of one window", "equal factors", "scaled"
]


class TapRun(NamedTuple):
    """Neighbouring taps on one axis of a convolution, and what they read of it."""

    taps: slice
    inside: Tensor  # which of them lie on the image, `(windows, taps)`
    # How many windows see so many positions by these taps. By a single tap, positions are
    # counted instead: the windows that read the same one have one singular value together.
    seen: Counter[int]
    least: int  # how often a position that is read at all is read, at least
    most: int  # and at most

    @classmethod
    def of(cls, reads: tuple[Tensor, Tensor], taps: slice) -> TapRun:
        """A run of an axis whose positions are read as `ConvMap.reads` says."""
        read, inside = (values[:, taps] for values in reads)
        times = read[inside].bincount()
        times = times[times > 0]
        sizes = inside.sum(1) if inside.shape[1] > 1 else torch.ones_like(times)
        seen = Counter(sizes[sizes > 0].tolist())
        ends = (int(times.min()), int(times.max())) if times.numel() else (0, 0)
        return cls(taps, inside, seen, *ends)

    @property
    def length(self) -> int:
        return self.inside.shape[1]

    @property
    def complete(self) -> int:
        """Windows that lie on the image with all of these taps."""
        return self.seen[self.length]


class OrthogonalStart(NamedTuple):
    """A weight for a map, whose singular values are one or zero where nothing hinders that."""

    weight: Tensor
    how: How
    taps: tuple[slice, ...] = ()  # of a convolution: those that are not zero

    def smallest(self, map_: LinearMap) -> float:
        """The smallest of the map's `min(m, n)` singular values with this weight.

        The map may have another image size than the one that the weight was made for.
        """
        conv = map_.convolution
        if conv is None:
            return 1.0
        runs = [TapRun.of(conv.reads(axis), taps) for axis, taps in enumerate(self.taps)]
        if _rank(conv, runs) < min(conv.source.size, conv.target.size):
            return 0.0
        smallest = 1.0
        if not _is_tall(conv, runs):
            # Windows at the border see some columns of a matrix with orthonormal rows.
            block = on_host(self.weight[(slice(None), slice(None), *self.taps)])
            block = block.reshape(conv.geometry.groups, -1, *block.shape[1:])
            for patterns in itertools.product(*(run.inside.unique(dim=0) for run in runs)):
                whole = torch.ones((), dtype=torch.bool, device="cpu")
                for pattern in patterns:
                    whole = whole[..., None] & pattern
                if bool(whole.any()) and not bool(whole.all()):
                    columns = block[..., whole].flatten(2)
                    smallest = min(smallest, float(torch.linalg.svdvals(columns).min()))
        return smallest * math.prod(math.sqrt(run.least) for run in runs)


def orthogonal_start(map_: LinearMap, generator: torch.Generator) -> OrthogonalStart:
    """A random orthogonal weight for a map that has one."""
    weight, conv = map_.weight, map_.convolution
    assert weight is not None
    if weight.ndim == 1:
        return OrthogonalStart(torch.ones_like(weight), "equal factors")
    if conv is None:
        matrix = semi_orthogonal((1, *weight.shape), weight.dtype, generator)[0]
        return OrthogonalStart(matrix.to(weight.device), "orthogonal matrix")
    taps, groups = tuple(run.taps for run in best_runs(conv)), conv.geometry.groups
    new = torch.zeros_like(weight)
    block = new[(slice(None), slice(None), *taps)]
    shape = (groups, block.shape[0] // groups, block[0].numel())
    block.copy_(semi_orthogonal(shape, weight.dtype, generator).reshape(block.shape))
    if block.shape == weight.shape:
        return OrthogonalStart(new, "orthogonal matrix", taps)
    single = block[0, 0].numel() == 1
    return OrthogonalStart(new, "single tap" if single else "taps of one window", taps)


def semi_orthogonal(
    shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Random matrices with orthonormal rows or columns, whichever are fewer; on the CPU.

    They are uniformly distributed: the signs make the factor R of a Gaussian matrix unique.
    """
    count, rows, columns = shape
    long, short = max(rows, columns), min(rows, columns)
    place = generator.device
    drawn = torch.randn(count, long, short, generator=generator, dtype=dtype, device=place)
    q, r = torch.linalg.qr(drawn.cpu())
    q *= torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :].to(q)
    matrices: Tensor = q if rows >= columns else q.mT
    return matrices


def best_runs(conv: ConvMap) -> tuple[TapRun, ...]:
    """Taps that leave most singular values, if possible all of the same size; then, most taps."""

    def quality(runs: tuple[TapRun, ...]) -> tuple[int, bool, int]:
        windows = zip(runs, conv.target.shape[1:], strict=True)
        whole = _is_tall(conv, runs) or all(run.complete == count for run, count in windows)
        even = all(run.least == run.most for run in runs)
        return _rank(conv, runs), whole and even, math.prod(run.length for run in runs)

    axes = range(len(conv.geometry.stride))
    return max(itertools.product(*(_runs(conv, axis) for axis in axes)), key=quality)


def _runs(conv: ConvMap, axis: int) -> list[TapRun]:
    """For some lengths, the best run of taps on an axis: one that reads most, near the middle.

    Runs of several taps read no position twice.
    """
    stride, dilation = conv.geometry.stride[axis], conv.geometry.dilation[axis]
    reads = conv.reads(axis)
    windows, taps = reads[1].shape
    used = reads[1].any(0).nonzero().flatten().tolist() or [0]
    first, stop = used[0], used[-1] + 1
    length = stop - first
    if windows > 1:
        # More neighbouring taps would read the same positions in neighbouring windows.
        length = min(length, stride // math.gcd(stride, dilation))
    before = pad(reads[1].cumsum(1), (1, 0))  # each tap, on the image
    found = []
    while length:
        sizes = before[:, first + length : stop + 1] - before[:, first : stop + 1 - length]
        positions, complete = sizes.sum(0).tolist(), (sizes == length).sum(0).tolist()
        off = [abs(2 * start + length - taps) for start in range(first, stop + 1 - length)]
        order = sorted(range(len(off)), key=lambda i: (-positions[i], -complete[i], off[i]))
        runs = (TapRun.of(reads, slice(first + i, first + i + length)) for i in order)
        if length == 1:
            found.append(min(runs, key=lambda run: run.most))
        else:
            found.extend(itertools.islice((run for run in runs if run.most == 1), 1))
        length -= max(1, length // 8)  # all of them, up to fifteen; of more, some
    return found


def _rank(conv: ConvMap, runs: Sequence[TapRun]) -> int:
    """How many singular values are not zero: those of each window's matrix, together."""
    groups = conv.geometry.groups
    rows, channels = conv.weight.shape[0] // groups, conv.weight.shape[1]
    total = 0
    for sides in itertools.product(*(run.seen.items() for run in runs)):
        columns = channels * math.prod(size for size, _ in sides)
        total += groups * min(rows, columns) * math.prod(times for _, times in sides)
    return total


def _is_tall(conv: ConvMap, runs: Sequence[TapRun]) -> bool:
    """Whether the taps' matrix has orthonormal columns, of which any part is orthonormal too."""
    columns = conv.weight.shape[1] * math.prod(run.length for run in runs)
    return conv.weight.shape[0] // conv.geometry.groups >= columns
