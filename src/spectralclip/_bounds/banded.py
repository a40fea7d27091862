"""`M^T M` of a layer as a block-banded matrix.

Along a spatial axis two positions of the input couple only if some output depends on both.
Which ones do is read off the geometry of the layer's maps, never off computed numbers; of a map
without a known geometry everything is taken to depend on everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._operators import ConvMap, LinearMap, TransposedMap


@final
class BandedGram:
    """`A = M^T M` in blocks along one axis of M's input; a block is all that lies at a position.

    Blocks are read off `A x` for sums x of unit vectors so far apart that their images do not
    meet along any axis. Groups of channels that never mix make a batch of independent matrices,
    each of `count` block rows of `size`; blocks beyond the `bandwidth` are zero.
    """

    def __init__(self, maps: Sequence[LinearMap], axis: int, device: torch.device) -> None:
        """Read off the structure along an axis, counted with the channels; nothing is computed."""
        self.maps, self._axis, self.device = tuple(maps), axis, device
        couples = coupling(maps, axis)
        self._order = _order(couples)
        self.count, self.bandwidth = len(couples), bandwidth(couples[self._order][:, self._order])
        short = shortened(maps[0], axis, bandwidth(couples)) if len(maps) == 1 else None
        self._short, self._formed = short, (short.map_,) if short else self.maps
        self._shape = self._formed[0].source.shape
        self._couples = coupling(self._formed, axis)
        self._colours = _colours(self._couples)
        others = [other for other in range(1, len(self._shape)) if other != axis]
        beside = torch.ones(1, 1, device="cpu")
        colours = torch.zeros(1, dtype=torch.long, device="cpu")
        for other in others:
            near = coupling(maps, other)
            beside = torch.kron(beside, near.float())
            own = _colours(near)
            colours = (colours[:, None] * (int(own.max()) + 1) + own).flatten()
        self._beside_count, self._beside_colours = beside.shape[0], colours
        self._pairs = beside.nonzero(as_tuple=True)
        self.groups = math.gcd(*(map_.channel_groups for map_ in maps)) or self._shape[0]
        self._channels = self._shape[0] // self.groups
        self.size = beside.shape[0] * self._channels

    @property
    def work(self) -> float:
        """Multiply-adds that a certificate takes: products, solves and the check of both."""
        w = self.bandwidth
        return float(self.groups * self.count * self.size**3) * ((w * w + 5 * w) / 2 + 1.5)

    @property
    def numbers(self) -> float:
        """Numbers to be held."""
        colours = (int(self._colours.max()) + 1) * (int(self._beside_colours.max()) + 1)
        window = self.groups * (self.bandwidth + 3) * (self.bandwidth + 1) * self.size**2
        return float(colours * self._channels * math.prod(self._shape) + window)

    def block(self, i: int, j: int) -> Tensor:
        """Block i, j of each group, `i >= j`: `(groups, size, size)`."""
        s, t = self._order[i], self._order[j]
        if self._short:
            s, t = self._short.place(s, t)
        positions, channels = self._beside_count, self._channels
        images = self._images[int(self._colours[t])]
        out = images.new_zeros(self.groups, positions, channels, positions, channels)
        if bool(self._couples[s, t]):
            q, p = self._pairs
            values = images[..., s, :][self._beside_colours[p], :, :, :, q]
            out[:, q, :, p, :] = values.permute(0, 2, 3, 1)
        return out.reshape(self.groups, self.size, self.size)

    @cached_property
    def _images(self) -> list[Tensor]:
        """`A x` for each colour along the axis: `(colours beside, c, groups, c, count, beside)`."""
        device, dtype = self.device, torch.float64
        channels, positions = self._channels, self._beside_count
        unit = torch.eye(channels, dtype=dtype, device=device).repeat(1, self.groups)
        images = []
        for colour in range(int(self._colours.max()) + 1):
            along = (self._colours == colour).to(device, dtype)[:, None]
            parts = []
            for other in range(int(self._beside_colours.max()) + 1):
                beside = (self._beside_colours == other).to(device, dtype)
                image = self._gram(unit[:, :, None, None] * (along * beside))
                parts.append(image.reshape(channels, self.groups, channels, -1, positions))
            images.append(torch.stack(parts))
        return images

    @torch.no_grad()
    def _gram(self, x: Tensor) -> Tensor:
        """`A x` for a batch `(k, c, count, beside)`."""
        layout, spatial = self._formed[0].source, len(self._shape) > 1
        if spatial:
            others = [n for a, n in enumerate(self._shape) if a not in (0, self._axis)]
            x = x.reshape(*x.shape[:3], *others).movedim(2, self._axis + 1)
        rows = layout.to_rows(x.reshape(-1, *self._shape))
        for map_ in self._formed:
            rows, layout = map_.forward(layout.converted(rows, map_.source)), map_.target
        for map_ in reversed(self._formed):
            rows, layout = map_.adjoint(layout.converted(rows, map_.target)), map_.source
        result = layout.to_tensor(rows)
        if spatial:
            result = result.movedim(self._axis + 1, 2)
        return result.reshape(x.shape[0], self._shape[0], -1, self._beside_count)


def coupling(maps: Sequence[LinearMap], axis: int) -> Tensor:
    """Which positions along an axis of the input may have a common output: `(n, n)` booleans."""
    length = maps[0].source.length(axis)
    reach = torch.eye(length, dtype=torch.float64, device="cpu")
    for map_ in maps:
        reach = (map_.reach(axis).double() @ reach > 0).double()
    return reach.T @ reach > 0


def _colours(couples: Tensor) -> Tensor:
    """Numbers for the positions, equal only where no position couples to both."""
    near = couples.double()
    clashes: list[list[bool]] = (near @ near > 0).tolist()
    colours: list[int] = []
    for position, clash in enumerate(clashes):
        taken = {colours[other] for other in range(position) if clash[other]}
        colours.append(next(c for c in range(position + 1) if c not in taken))
    return torch.tensor(colours, device="cpu")


def _order(couples: Tensor) -> list[int]:
    """The positions as they are, or folded so that the ends of a ring come to lie together."""
    plain = list(range(len(couples)))
    folded = [place // 2 if place % 2 == 0 else len(plain) - 1 - place // 2 for place in plain]
    return min(plain, folded, key=lambda order: bandwidth(couples[order][:, order]))


def bandwidth(couples: Tensor) -> int:
    """How far from the diagonal there are entries."""
    rows, columns = couples.nonzero(as_tuple=True)
    return int((rows - columns).abs().max()) if len(rows) else 0


class Shortened(NamedTuple):
    """A shorter image whose blocks are all those of a long one.

    Away from the ends of the axis a convolution only shifts. The long matrix has `inserted`
    more copies of the block column `middle`; before it the two agree, and after it up to a shift.
    """

    map_: LinearMap
    middle: int
    inserted: int

    def place(self, i: int, j: int) -> tuple[int, int]:
        """Where block i, j of the long matrix is found, for `i >= j`."""
        back = min(max(0, j - self.middle), self.inserted)
        return i - back, j - back


def shortened(map_: LinearMap, axis: int, bandwidth: int) -> Shortened | None:
    """A shorter image with all blocks of `M M^T`, along an axis of a convolution's output.

    Outputs that read no padding along the axis have blocks that depend on their distance alone.
    It is enough to keep those at both ends and, between them, the bandwidth and one more.
    """
    conv = map_.convolution
    if conv is None or not map_.is_transposed:
        return None
    geometry, size = conv.geometry, conv.source.shape[axis]
    stride, before = geometry.stride[axis - 1], geometry.before[axis - 1]
    span = conv.extent[axis - 1]
    firsts = [place * stride - before for place in range(conv.target.shape[axis])]
    inner = [place for place, first in enumerate(firsts) if 0 <= first <= size - span]
    inserted = len(inner) - bandwidth - 1
    if inserted < 1:
        return None
    removed = inserted * stride
    # What outputs up to the middle and the bandwidth read must not move, and what those after the
    # middle read must move with the far end.
    here, there = (geometry.read_positions(axis - 1, n) for n in (size - removed, size))
    low = firsts[inner[0] + bandwidth] + span + before
    high = firsts[inner[0] + 1] + before
    moved = there[high + removed :] - removed
    if not (torch.equal(here[:low], there[:low]) and torch.equal(here[high:], moved)):
        return None
    shape = (*conv.source.shape[:axis], size - removed, *conv.source.shape[axis + 1 :])
    short = ConvMap(conv.weight, geometry, shape, channels_last=conv.source.channels_last)
    return Shortened(TransposedMap(short), inner[0], inserted)
