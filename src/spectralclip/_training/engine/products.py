"""Products of two factors that train, as the queries and keys of a head: both give way alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._operators import Factor
from spectralclip._training.engine.group import broadcast, finite, scaled, stacked
from spectralclip._training.engine.matrices import SHARE_KEPT, Followed
from spectralclip._training.engine.small import unit_matrix
from spectralclip._training.method import seeded

BLOCK = 64  # vectors: with 32, products of 64 inner units that grow as a whole reached 1.23
ROOTS = 3  # steps of a root between 0.8 and 1: its error is below 1e-4


@final
@dataclass(frozen=True)
class Pair:
    """One product `left^T right`, times a constant.

    Attributes:
        name: Of the layer.
        left: The first factor.
        right: The second one, with as many units.
        origin: Where its random numbers come from.
    """

    name: str
    left: Factor
    right: Factor
    origin: str = ""

    @property
    def scale(self) -> float:
        """The constant."""
        return self.left.scale * self.right.scale

    @property
    def views(self) -> list[Tensor]:
        """What moves: the weights of both, `(units, inputs)`, and their offsets."""
        with torch.no_grad():
            return [*self.left.views(), *self.right.views()]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be equal of all products of a group."""
        views = self.views
        shapes = tuple(view.shape for view in views)
        return (shapes, len(self.left.views()), views[0].dtype, views[0].device, self.scale)


@final
class Products(Followed):
    """Equal products of the same size.

    A product is clipped to `P^2 M` within the block, with `P = 1 - V^T f V` for the left vectors V.
    Half of it is done to the left factor, by P, and half to the right one, by the same function of
    the right vectors: along each singular pair both shrink by the same share, and neither of them
    pays for what the other has grown.
    """

    block, degree, kernels = BLOCK, 2.0, 1

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.names, self._pairs = tuple(pair.name for pair in pairs), list(pairs)
        self._split = len(pairs[0].left.views())  # of its views, those of the left factor
        like = self._whole()[0]
        inner, side = like.shape[1:]
        self._begin(side, min(inner, side), (seeded(pair.origin) for pair in pairs), like)
        self._eye = unit_matrix(self.state["vectors"].shape[1], like)

    def parameters(self) -> list[list[Tensor]]:
        return [list(own) for own in zip(*(pair.views for pair in self._pairs), strict=True)]

    def _whole(self) -> list[Tensor]:
        """Both factors of all products, `(products, units, inputs)`; offsets are a last input."""
        parts = [stacked(own) for own in self.parameters()]
        self._widths = [part.shape[2] for part in parts]
        sides = parts[: self._split], parts[self._split :]
        return [side[0] if len(side) == 1 else torch.cat(side, 2) for side in sides]

    def read(self) -> Tensor:
        self._stored = self._whole()
        peaks = [own.abs().amax((1, 2)) for own in self._stored]
        return (self._pairs[0].scale * peaks[0] * peaks[1])[:, None]

    def normalize(self, unit: Tensor, bound: Tensor) -> None:
        self._unit = unit
        root = (self._pairs[0].scale * unit).sqrt()[:, None, None]
        self._finite = [finite(own) for own in self._stored]
        self._left, self._right = (own * root for own in self._finite)

    def send(self) -> Tensor:
        known = self.state["vectors"]
        images = torch.bmm(torch.bmm(known, self._left.mT), self._right)
        back = torch.bmm(images, self._right.mT)
        self._vectors = torch.baddbmm(known, back, self._left, beta=SHARE_KEPT)
        return self._padded(torch.bmm(self._vectors, self._vectors.mT))

    def refresh(self, whitening: Tensor) -> Tensor:
        known = self.state["vectors"]
        k = known.shape[1]
        torch.bmm(whitening[:, :k, :k], self._vectors, out=known)
        self._images = torch.bmm(torch.bmm(known, self._left.mT), self._right)
        return self._padded(torch.bmm(self._images, self._images.mT))

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        k = len(self._eye)
        surplus = cuts[:, :k, :k] * broadcast(-self._unit / scale, cuts)
        half = surplus / 2
        for _ in range(ROOTS):  # `(1 - half)^2 = 1 - surplus`
            half = torch.baddbmm(surplus, half, half, beta=0.5, alpha=0.5)
        known, images, root = self.state["vectors"], self._images, scale.sqrt()
        left, right = self._finite
        along = torch.bmm(torch.bmm(known, left.mT).mT, torch.bmm(half, known))
        # Right vectors are images over their lengths, which are `limit / (1 - surplus)`.
        rest = (self._eye - surplus) / broadcast(self.limit, surplus)
        half = torch.bmm(torch.bmm(rest, half), rest)
        across = torch.bmm(torch.bmm(right, images.mT), torch.bmm(half, images))
        changes = along, across
        new = [scaled(own - c, root) for own, c in zip(self._stored, changes, strict=True)]
        widths = self._widths[: self._split], self._widths[self._split :]
        return [
            part for own, sizes in zip(new, widths, strict=True) for part in own.split(sizes, 2)
        ]
