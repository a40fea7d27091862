"""Layers that are followed through Fourier modes.

These are convolutions with zero or circular padding, and dense layers with a batch norm, which have
one mode. Of convolutions with other paddings, full vectors see to the borders after this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from spectralclip._training.engine.constrained_layer import ConstrainedLayer, stacked_scales
from spectralclip._training.engine.cuts import Follower, of_unit_size
from spectralclip._training.engine.frequencies import Frequencies, Taps
from spectralclip._training.engine.group import Group, finite, joined, scaled, slices, stacked
from spectralclip._training.engine.small import TINY, largest


@final
class Modes(Group):
    """Convolutions of one shape: B kernels at F frequencies, with k vectors at each.

    With a batch norm, it is the rows of the kernel times its factors that act. Then its own
    factor moves, or the weight where it has none.

    Args:
        layers: Of equal shape.
        taps: Of their kernels.
        frequencies: Where to follow them.
        vectors: At each frequency, at most.
    """

    def __init__(
        self,
        layers: Sequence[ConstrainedLayer],
        taps: Taps,
        frequencies: Frequencies,
        vectors: int,
    ) -> None:
        self.names, self.kernels = tuple(layer.name for layer in layers), layers[0].groups
        self._layers, self.taps, self.frequencies = list(layers), taps, frequencies
        self._rows: Tensor | None = None
        like = stacked([layers[0].weight])
        rows, columns = like.shape[1] // self.kernels, like.shape[2]
        self.width = k = max(1, min(vectors, rows // 2))
        self.key = (modes_key(taps, frequencies), k, like.dtype)
        shape = (self.kernels, len(frequencies.centers), k, rows)
        generators, kind = [layer.generator() for layer in layers], torch.complex64
        draws = [torch.randn(shape, dtype=kind, generator=g, device="cpu") for g in generators]
        start = torch.linalg.qr(torch.cat(draws).mT)[0].mT
        planes = torch.stack((start.real, start.imag), 3).flatten(2, 3)
        self.state = {
            "vectors": planes.to(like).contiguous(),
            "frequencies": frequencies.centers.to(like).repeat(self.count, 1, 1),
        }
        self._shape = (self.count, rows, columns, len(taps.steps))

    def parameters(self) -> list[list[Tensor]]:
        return [[layer.moving for layer in self._layers]]

    def read(self) -> Tensor:
        stack = stacked([layer.weight for layer in self._layers]).reshape(self._shape)
        self._stored, self._acting, scales = stack, stack, stacked_scales(self._layers)
        if scales is not None:
            self._rows = scales.to(stack).reshape(self.count, -1)
            self._acting = stack * self._rows[..., None, None]
        return self._acting

    def normalize(self, unit: Tensor, bound: Tensor, is_finite: bool) -> None:
        self._unit = unit[:, None]
        weights = self._acting if is_finite else finite(self._acting)
        # By tap: what is folded over taps needs no permutation then.
        self._weights = scaled(weights.transpose(2, 3), unit)

    def refresh(self, table: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Its part of `Follower.refresh`.

        Args:
            table: Of phases, `(kernels, F, k, rows, taps)`.
            rows: How many of these are for images; those of their slopes follow.
        """
        W, known = self._weights.flatten(2), self.state["vectors"].flatten(0, 1)
        table, plain = table.flatten(0, 2), table.flatten(0, 2)[:, :rows]
        pulled = self._pull(known, table)
        self._first = pulled.view(len(known), self.width, -1, rows * pulled.shape[2])[:, 0]
        images = pulled[:, :rows]
        reads = torch.bmm(plain.mT, images)
        back = torch.bmm(reads.view(len(W), -1, W.shape[2]), W.mT).view_as(known)
        self._basis = torch.cat((known, back), 1)
        both = [t.unflatten(0, (-1, self.width)) for t in (images, self._pull(back, plain))]
        self._images = torch.cat(both, 1).view(len(known), 4 * self.width, -1)
        basis, images = (torch.bmm(t, t.mT) for t in (self._basis, self._images))
        return basis, images

    def slopes(self) -> Tensor:
        """Products of the first image at each frequency with itself, and with its slopes."""
        return torch.bmm(self._first[:, :1], self._first.mT)

    def _pull(self, vectors: Tensor, table: Tensor) -> Tensor:
        """`sum_t e^{-i w q_t} z_t` over the taps of each remainder, and what else the table has."""
        W = self._weights.flatten(2)
        taken = torch.bmm(vectors.reshape(len(W), -1, W.shape[1]), W)
        return torch.bmm(table, taken.view(len(table), table.shape[2], -1))

    def keep(self, mix: Tensor) -> None:
        """Go on with the leading vectors of the space that was searched."""
        torch.bmm(mix, self._basis, out=self.state["vectors"].flatten(0, 1))
        self._images = torch.bmm(mix, self._images)

    def cuts(self, places: Tensor, values: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        """Take some of the values for cuts; products of their gradients, each times its value.

        Those of a weight are given by their factors, plane by plane: products on either side.

        Args:
            places: `(kernels, cuts)`, of frequencies and vectors.
            values: There.
            table: Of the phases there.
        """
        B, n = places.shape
        vectors, images = (
            t.view(B, -1, 2, t.shape[-1]) for t in (self.state["vectors"], self._images)
        )
        at = places[..., None, None]
        left = vectors.gather(1, at.expand(-1, -1, 2, vectors.shape[3]))
        if self._moves_factor:
            shares = (torch.linalg.vector_norm(left, dim=2) * values[..., None]).square()
            # What a factor of zero multiplies stays out of it.
            gradients = finite(shares / self._factors()[:, None])
            self._gradients, size = of_unit_size(gradients)
            self._size = size / self._unit
            return (torch.bmm(self._gradients, self._gradients.mT),)
        found = images.gather(1, at.expand(-1, -1, 2, images.shape[3]))
        flat = table.flatten(0, 1)
        right = torch.bmm(flat.mT, found.view(B * n, flat.shape[1], -1))
        # In the order of the weights: there are more of these than of the cuts.
        self._right = right.view(B, 2 * n, -1, right.shape[2]).transpose(2, 3).flatten(2)
        if self._rows is not None:
            # In units in which the largest factor of a row is one.
            rows = finite(self._rows)
            self._top = largest(rows).clamp_min(TINY)
            left = left * (rows / self._top[:, None])[:, None, None]
        self._left = left.flatten(1, 2)
        left, right = (torch.bmm(t, t.mT) for t in (self._left, self._right))
        return left, right

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        shape = (len(self.names), *self._layers[0].moving.shape)
        if self._moves_factor:
            along = torch.bmm((cuts / self._size)[:, None], self._gradients)[:, 0]
            return [scaled(self._factors(), scale, along).reshape(shape)]
        cuts = cuts if self._rows is None else cuts / self._top[:, None]
        left = (self._left.unflatten(1, (-1, 2)) * cuts[..., None, None]).flatten(1, 2)
        kept = self._stored.flatten(2) * scale[:, None, None]
        return [kept.baddbmm_(left.mT, self._right).view(shape)]

    @property
    def _moves_factor(self) -> bool:
        return self._layers[0].gamma is not None

    def _factors(self) -> Tensor:
        """The factors of the batch norms."""
        return stacked(self.parameters()[0]).reshape(self.count, -1)


@final
class Torus(Follower):
    """Convolutions that have their taps and frequencies in common, of any number of channels.

    A refresh is a step of block Lanczos at each frequency: the known vectors are sent through the
    layer and back, what comes back is made orthogonal to them, and both together span the space in
    which the leading pairs are looked for. Frequencies climb along the slope of their first value.
    """

    groups: list[Modes]

    def __init__(self, groups: Sequence[Modes]) -> None:
        self.groups, self.width = list(groups), groups[0].width
        taps, frequencies = groups[0].taps, groups[0].frequencies
        self._slices = slices(self.groups)
        # The frequencies of all groups are one tensor.
        self._at = joined([group.state["frequencies"] for group in groups])
        for group, own in zip(groups, self._slices, strict=True):
            group.state["frequencies"] = self._at[own]
        self._climbs = any(frequencies.reach)
        self._rows = 2 * taps.remainder_count
        phases, places = taps.tables()
        rows = len(phases) if self._climbs else self._rows
        self._phases, self._places = phases[:rows].to(self._at), places[:rows].to(self._at)
        self._steps = taps.steps.T.repeat(1, 2 * rows).to(self._at)  # of both planes, in each row
        centers, reach = frequencies.centers, frequencies.centers.new_tensor(frequencies.reach)
        self._least, self._most = (centers - reach).to(self._at), (centers + reach).to(self._at)
        self._table = self._made_table()

    def _made_table(self) -> Tensor:
        """Phases at the frequencies as they are, for each vector there."""
        angles = torch.addmm(self._phases.flatten(), self._at.flatten(0, 1), self._steps)
        table = torch.cos(angles) * self._places.flatten()
        table = table.view(*self._at.shape[:2], 1, *self._places.shape)
        return table.expand(-1, -1, self.width, -1, -1).contiguous()

    def refresh(self) -> list[tuple[Tensor, Tensor]]:
        if self._climbs:
            self._table = self._made_table()
        pairs = zip(self.groups, self._slices, strict=True)
        found = [group.refresh(self._table[own], self._rows) for group, own in pairs]
        if self._climbs:
            self._climb(joined([group.slopes() for group in self.groups]))
        return found

    def keep(self, mix: Tensor) -> None:
        sizes = [self._at.shape[1] * group.count for group in self.groups]
        for group, own in zip(self.groups, mix.split(sizes), strict=True):
            group.keep(own)

    def cuts(self, places: Tensor, values: Tensor) -> Tensor:
        tables = self._table.flatten(1, 2)[:, :, : self._rows]
        table = tables.gather(1, places[..., None, None].expand(-1, -1, *tables.shape[2:]))
        pairs = zip(self.groups, self._slices, strict=True)
        found = [g.cuts(places[own], values[own], table[own]) for g, own in pairs]
        # All together, but where weights move in some groups, and factors of batch norms in others.
        if len({len(own) for own in found}) == 1:
            found = [tuple(joined(parts) for parts in zip(*found, strict=True))]
        return joined([_products(*own) for own in found])

    def _climb(self, products: Tensor) -> None:
        """Move frequencies along the slope of their first value, within their cells."""
        products = products.view(*self._at.shape[:2], -1)
        size, slopes = products[..., :1].clamp_min(TINY), products[..., 1:]
        moved = torch.addcdiv(self._at, slopes, size)
        torch.clamp(moved, self._least, self._most, out=self._at)


def _products(left: Tensor, right: Tensor | None = None) -> Tensor:
    """Of gradients, from what `Modes.cuts` gives of them."""
    if right is None:
        return left
    n = left.shape[1] // 2
    return (left * right).view(-1, n, 2, n, 2).sum((2, 4))


def modes_key(taps: Taps, frequencies: Frequencies) -> str:
    """What is equal of layers that are followed at the same places."""
    places = (taps.steps, taps.remainders, frequencies.centers)
    return repr((frequencies.reach, [t.tolist() for t in places]))
