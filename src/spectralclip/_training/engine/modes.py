"""Convolutions with zero or circular padding, followed through Fourier modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from spectralclip._training.engine.constrained_layer import ConstrainedLayer, stacked_scales
from spectralclip._training.engine.frequencies import Frequencies, Taps
from spectralclip._training.engine.group import CutGroup, Move, of_unit_size, stacked
from spectralclip._training.engine.small import TINY
from spectralclip._training.engine.tuning import TUNING


@final
class Torus:
    """The taps and frequencies that some groups have in common, and their tables at each step.

    Args:
        taps: Of the kernels.
        frequencies: Where they are followed.
        width: Vectors at each frequency.
        like: For precision and device.
    """

    def __init__(self, taps: Taps, frequencies: Frequencies, width: int, like: Tensor) -> None:
        self.taps_count, self.remainders, self.width = len(taps.steps), taps.remainder_count, width
        self._phases, self._places = (t.to(like) for t in taps.tables())
        self._steps = torch.cat((taps.steps, taps.steps)).T.contiguous().to(like)  # of both planes
        self.centers = frequencies.centers.to(like)
        reach = torch.tensor(frequencies.reach, dtype=torch.float64, device="cpu").to(like)
        self._least, self._most = self.centers - reach, self.centers + reach
        self.climbs = any(frequencies.reach)
        self.at = self.centers

    def share_out(self, groups: Sequence[Modes]) -> None:
        """Keep the frequencies of all these groups in one tensor."""
        self.at = torch.cat([group.state["frequencies"] for group in groups])
        parts = self.at.split([group.count for group in groups])
        for group, part in zip(groups, parts, strict=True):
            group.state["frequencies"] = part

    def tables(self, unit: Tensor) -> tuple[Tensor, ...]:
        """Phases of the taps, plain, in units of the kernels, and those with their slopes.

        Each is `(kernels, F, k, rows, 2 T)`.
        """
        angles = self.at @ self._steps
        plain = torch.cos(angles[:, :, None] + self._phases) * self._places
        table = plain * unit[:, None, None, None]
        slopes = table
        if self.climbs:
            own = (table[:, :, None] * self._steps[:, None]).flatten(2, 3)
            slopes = torch.cat((table, own), 2)
        shown = (t[:, :, None].expand(-1, -1, self.width, -1, -1) for t in (plain, table, slopes))
        return tuple(t.contiguous() for t in shown)

    def climb(self, products: Tensor) -> None:
        """Move frequencies along the slope of their first value, within their cells.

        Args:
            products: Of the planes of that value and of its slopes with those of the value.
        """
        turned = products.unflatten(2, (-1, 2))
        slope = turned[:, :, 1:, 1, 0] - turned[:, :, 1:, 0, 1]
        size = turned[:, :, :1, 0, 0] + turned[:, :, :1, 1, 1]
        moved = self.at + slope / size.clamp_min(TINY)
        self.at.copy_(moved.clamp(self._least, self._most))


@final
class Modes(CutGroup):
    """Convolutions of one shape: B kernels at F frequencies, with k vectors at each.

    A refresh is a step of block Lanczos at each frequency: the known vectors are sent through the
    layer and back, what comes back is made orthogonal to them, and both together span the space in
    which the leading pairs are looked for. On the way back the weights are extrapolated along
    their last step: what is about to be large is where they are heading.

    With a batch norm, it is the rows of the kernel times its factors that act. Then its own
    factor moves, or the weight where it has none.

    Args:
        layers: Of equal shape.
        taps: Of their kernels.
        frequencies: Where to follow them.
        vectors: At each frequency, at most.
        generators: For the start of each layer.
    """

    def __init__(
        self,
        layers: Sequence[ConstrainedLayer],
        taps: Taps,
        frequencies: Frequencies,
        vectors: int,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.names, self.kernels = tuple(layer.name for layer in layers), layers[0].groups
        self._layers = list(layers)
        like = stacked([layers[0].weight])
        rows, columns = like.shape[1] // self.kernels, like.shape[2]
        T, R = len(taps.steps), taps.remainder_count
        self._shape = (rows, columns, T, R)
        self.width = k = max(1, min(vectors, rows // 2))
        self.torus, self.key = Torus(taps, frequencies, k, like), (modes_key(taps, frequencies), k)
        F = len(frequencies.centers)
        shape, B = (self.kernels, F, k, rows), self.count
        draws = [
            torch.randn(shape, dtype=torch.complex64, generator=g, device="cpu") for g in generators
        ]
        start = torch.linalg.qr(torch.cat(draws).mT)[0].mT
        planes = torch.stack((start.real, start.imag), 3).flatten(2, 3)
        self.state = {
            "vectors": planes.to(like).contiguous(),
            "frequencies": self.torus.centers.repeat(B, 1, 1),
            "weights": like.new_zeros(B, rows, T * columns),
        }
        if layers[0].norm is not None:
            self.state["rows"] = like.new_zeros(B, rows)
        # The vectors, and behind each what the layer makes of it.
        self._space = like.new_zeros(B * F, 4 * k, rows + R * columns)
        self._vectors, self._images = self._space.split((rows, R * columns), 2)

    def settle(self) -> None:
        self.state["weights"].copy_(self._weights)
        if self._rows is not None:
            self.state["rows"].copy_(self._rows)

    def parameters(self) -> list[list[Tensor]]:
        return [[layer.moving for layer in self._layers]]

    @property
    def _moves_factor(self) -> bool:
        return self._layers[0].gamma is not None

    def read(self) -> Tensor:
        rows, columns, T, _ = self._shape
        stack = stacked([layer.weight for layer in self._layers])
        acting = self._stored = stack.reshape(self.count, rows, columns, T)
        self._rows = stacked_scales(self._layers)
        if self._rows is not None:
            self._rows = self._rows.to(stack).reshape(self.count, rows)
            acting = acting * self._rows[..., None, None]
        return acting.abs().amax((1, 2, 3))

    def normalize(self, unit: Tensor, bound: Tensor, is_sound: Tensor) -> None:
        last, rows = self.state["weights"], self._rows
        shape = (self.count, self._shape[0], self._shape[2], self._shape[1])
        self.unit, self._bound = unit, bound
        # With the old weights first: it is their order that the result has.
        is_lost = ~is_sound[:, None, None, None]
        weights = torch.where(is_lost, last.view(shape), self._stored.transpose(2, 3))
        self._weights = weights.reshape(last.shape)
        self._ahead, self._rows_ahead = torch.lerp(last, self._weights, 1 + TUNING.ahead), rows
        if rows is not None:
            known = self.state["rows"]
            self._rows = torch.where(is_sound[:, None], rows, known)
            self._rows_ahead = torch.lerp(known, self._rows, 1 + TUNING.ahead)

    def send(self, tables: Sequence[Tensor]) -> Tensor:
        """Send the known vectors through the layer and back; the products of both with them."""
        self._tables = [table.flatten(0, 2) for table in tables]
        _, table, slopes = self._tables
        known, planes = self.state["vectors"], self.state["vectors"].shape[2]
        flat = known.flatten(0, 1)
        self._vectors[:, :planes] = flat
        folded = self._pull(known, slopes)
        images = folded[:, : table.shape[1]]
        self._images[:, :planes].view(-1, planes // 2, 2, self._images.shape[2]).copy_(
            images.reshape(-1, planes // 2, 2, self._images.shape[2])
        )
        reads = torch.bmm(table.mT, images).view(len(known), -1, self._ahead.shape[2])
        back = _times(torch.bmm(reads, self._ahead.mT).view_as(known), self._rows_ahead)
        self._back, self._folded = back.view_as(flat), folded
        return torch.bmm(flat, self._back.mT)

    def look(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Send what is new in those; Gram matrices of vectors and of their images."""
        planes = self.state["vectors"].shape[2]
        flat = self._vectors[:, :planes]
        fresh = torch.baddbmm(self._back, shares.mT, flat, alpha=-1)
        self._vectors[:, planes:] = fresh
        others = self._pull(fresh.view_as(self.state["vectors"]), self._tables[1])
        self._images[:, planes:] = others.reshape(len(fresh), planes, -1)
        both = (self._vectors, self._images)
        grams = [torch.bmm(one, one.mT) for one in both]
        return grams[0], grams[1]

    def slopes(self) -> Tensor:
        """Products of the first value's planes and slopes with its planes."""
        B, F = self.state["vectors"].shape[:2]
        first = self._folded.view(B, F, self.width, -1, self._shape[1])[:, :, 0]
        planes = first.reshape(B, F, -1, self._shape[3] * self._shape[1])
        return planes @ planes[:, :, :2].mT

    def _pull(self, vectors: Tensor, table: Tensor) -> Tensor:
        """`sum_t e^{-i w q_t} z_t` over the taps of each remainder, by vector."""
        given = _times(vectors, self._rows).flatten(1, 2)
        taken = torch.bmm(given, self._weights)
        return torch.bmm(table, taken.view(len(table), table.shape[2], -1))

    def keep(self, mix: Tensor, values: Tensor) -> None:
        mixed = torch.bmm(mix, self._space)
        self.state["vectors"].copy_(mixed[..., : self._shape[0]].view_as(self.state["vectors"]))
        self._mixed = mixed.view(self.count, values.numel() // self.count, 2, -1)

    def cuts(self, places: Tensor, values: Tensor) -> Tensor:
        rows, columns, _, R = self._shape
        at = places[..., None, None]
        left, images = self._mixed.gather(1, at.expand(-1, -1, 2, self._mixed.shape[3])).split(
            (rows, R * columns), 3
        )
        if self._moves_factor:
            shares = left.square().sum(2) * values.square()[..., None]
            factor = self._old() * (self.unit * self._bound)[:, None]
            gradients = torch.where(factor[:, None] == 0, 0, shares / factor[:, None])
            self._gradients, self._size = of_unit_size(gradients)
            return torch.bmm(self._gradients, self._gradients.mT)
        plain = self._tables[0].unflatten(0, (len(places), -1))
        table = plain.gather(1, at.expand(-1, -1, *plain.shape[2:])).mT.flatten(0, 1)
        right = torch.bmm(table, images.reshape(len(table), table.shape[2], columns))
        self._right = right.view(len(places), 2 * places.shape[1], -1)
        if self._rows is not None:
            # In units in which the largest factor of a row is one.
            self._top = self._rows.abs().amax(1, keepdim=True).clamp_min(TINY)
            left = left * (self._rows / self._top)[:, None, None]
        self._left = left.flatten(1, 2)
        products = torch.bmm(self._left, self._left.mT) * torch.bmm(self._right, self._right.mT)
        n = places.shape[1]
        return products.view(-1, n, 2, n, 2).sum((2, 4))

    def move(self, step: Move) -> list[Tensor]:
        shape = (len(self.names), *self._layers[0].moving.shape)
        if self._moves_factor:
            assert self._rows is not None
            old = self._old()
            change = torch.bmm(step.multipliers[:, None], self._gradients)[:, 0] / self._size
            new = torch.where(step.is_touched[:, None], old * step.whole[:, None] - change, old)
            is_kept = (old == 0) | ~step.is_touched[:, None]
            self.state["rows"].copy_(self._rows * torch.where(is_kept, 1, new / old))
            self.state["weights"].copy_(self._weights)
            return [new.reshape(shape)]
        left = self._left * step.planes
        if self._rows is not None:
            self.state["rows"].copy_(self._rows)
            left = left / self._top[..., None]
        scaled, out = self._weights * step.whole[:, None, None], self.state["weights"]
        torch.baddbmm(scaled, left.mT, self._right, alpha=-1, out=out)
        new = out.unflatten(2, (self._shape[2], -1)).transpose(2, 3)
        return [torch.where(step.is_touched[:, None, None, None], new, self._stored).reshape(shape)]

    def old(self) -> list[Tensor]:
        stored = self._old() if self._moves_factor else self._stored
        return [stored.reshape(len(self.names), *self._layers[0].moving.shape)]

    def _old(self) -> Tensor:
        return stacked(self.parameters()[0]).reshape(self.count, -1)


def modes_key(taps: Taps, frequencies: Frequencies) -> str:
    """What is equal of layers that are followed at the same places."""
    return repr(
        (
            taps.steps.tolist(),
            taps.remainders.tolist(),
            frequencies.reach,
            frequencies.centers.tolist(),
        )
    )


def _times(vectors: Tensor, rows: Tensor | None) -> Tensor:
    return vectors if rows is None else vectors * rows[:, None, None]
