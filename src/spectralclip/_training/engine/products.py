"""Products of two factors that train, as the queries and keys of a head: both give way alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._operators import Factor
from spectralclip._training.engine.group import broadcast, finite, joined, scaled, stacked
from spectralclip._training.engine.matrices import Block, Blocks, padded
from spectralclip._training.engine.small import TINY, triangular_root, unit_matrix

ROOTS = 3  # steps of a root between 0.8 and 1: its error is below 1e-4


@final
@dataclass(frozen=True)
class Pair:
    """One product `left^T right`, times a constant.

    Attributes:
        name: Of the layer.
        left: The first factor.
        right: The second one, with as many units.
    """

    name: str
    left: Factor
    right: Factor

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
class Products(Block):
    """Equal products of the same size, known whole by matrices as large as they have units.

    The singular values of `A^T B` are the roots of the eigenvalues of `G_A G_B`, for the Gram
    matrices of both factors. A product is clipped where `1 - f` of these shrinks it along each
    singular pair, half of which is done to either factor: `A - f(G_A G_B) A` and
    `B - f(G_B G_A) B`. So both shrink by the same share, and neither of them pays for what the
    other has grown.
    """

    degree, kernels, is_seen_whole = 2.0, 1, True

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.names, self._pairs = tuple(pair.name for pair in pairs), list(pairs)
        self._split = len(pairs[0].left.views())  # of its views, those of the left factor
        self.state = {}
        like = self._whole()[0]
        self.units = like.shape[1]
        self._eye = unit_matrix(self.units, like)

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
        self._peaks = [own.abs().amax((1, 2)) for own in self._stored]
        return (self._pairs[0].scale * self._peaks[0] * self._peaks[1])[:, None]

    def normalize(self, unit: Tensor, bound: Tensor, is_finite: bool) -> None:
        self._unit, self._finite = unit, [finite(own) for own in self._stored]
        peaks = [finite(peak).clamp_min(TINY) for peak in self._peaks]
        self._size = self._pairs[0].scale * unit * peaks[0] * peaks[1]
        # Each factor in its own unit: one may be as large as the other is small.
        units = [torch.reciprocal(peak).masked_fill(unit == 0, 0) for peak in peaks]
        left, right = (scaled(own, by) for own, by in zip(self._finite, units, strict=True))
        self._left, self._right = torch.bmm(left, left.mT), torch.bmm(right, right.mT)

    def gram(self, by_products: bool) -> Tensor:
        """A symmetric matrix with the eigenvalues of `G_A G_B`."""
        self._root = triangular_root(self._right, self._eye, by_products)
        gram = torch.bmm(torch.bmm(self._root.mT, self._left), self._root)
        return gram * broadcast(self._size.square(), gram)

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        k = self.units
        surplus = cuts[:, :k, :k] * broadcast(-self._unit / scale, cuts)
        half = surplus / 2
        for _ in range(ROOTS):  # `(1 - half)^2 = 1 - surplus`
            half = torch.baddbmm(surplus, half, half, beta=0.5, alpha=0.5)
        # `f(h) / h`, in the units of the Gram matrices: there h is `(1 - surplus)^-2`.
        rest = (self._eye - surplus) * broadcast(self._size / self.limit, surplus)
        along = torch.bmm(self._root, rest)
        middle = torch.bmm(torch.bmm(along, half), along.mT)
        left = torch.bmm(self._left, middle)
        changes = [
            torch.bmm(by, own) for by, own in zip((left, left.mT), self._finite, strict=True)
        ]
        root = scale.sqrt()
        new = [scaled(own - c, root) for own, c in zip(self._stored, changes, strict=True)]
        widths = self._widths[: self._split], self._widths[self._split :]
        return [
            part for own, sizes in zip(new, widths, strict=True) for part in own.split(sizes, 2)
        ]


@final
class WholeBlocks(Blocks):
    """Products, of which all singular values are known and clipped."""

    def __init__(self, groups: Sequence[Products], by_products: bool) -> None:
        super().__init__(groups)
        self._products, self._by_products = groups, by_products
        self._side = max(group.units for group in groups)
        self._eye = unit_matrix(self._side, groups[0].read())

    def refresh(self) -> None:
        grams = [group.gram(self._by_products) for group in self._products]
        self._grams = joined([padded(gram, self._side) for gram in grams])
