"""Dense layers, and others whose windows do not overlap: matrices, clipped within a block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from spectralclip._linalg import decomposable
from spectralclip._training.engine.constrained_layer import ConstrainedLayer
from spectralclip._training.engine.group import (
    Found,
    Group,
    Kind,
    finite,
    joined,
    scaled,
    slices,
    stacked,
)
from spectralclip._training.engine.small import TINY, surplus, unit_matrix, whitening
from spectralclip._training.engine.tuning import TUNING

SHARE_KEPT = 1e-6  # of a vector in a power step: those of a matrix of zeros stay as they are


class Followed(Group):
    """Maps of which a block of leading left vectors is followed by power steps.

    Attributes:
        block: How many vectors; maps of lower rank have fewer, and are seen whole.
        limit: Of each kernel, in the units of its weights: values above are clipped to it.
    """

    block: int
    limit: Tensor

    @abstractmethod
    def send(self) -> Tensor:
        """A power step; the Gram matrix of what it leaves, as large as a block."""

    @abstractmethod
    def refresh(self, whitening: Tensor) -> Tensor:
        """Take the vectors as this makes them; the Gram matrix of their images."""

    def _begin(self, side: int, rank: int, generators: Iterable[Generator], like: Tensor) -> None:
        """Vectors at random, `(kernels, vectors, side)`."""
        shape = (self.kernels, side, min(self.block, rank))
        draws = [torch.randn(shape, generator=own, device="cpu") for own in generators]
        self.state = {"vectors": torch.linalg.qr(torch.cat(draws))[0].mT.contiguous().to(like)}
        self._missing = self.block - shape[2]
        self.is_seen_whole = rank <= self.block

    def _padded(self, gram: Tensor) -> Tensor:
        return pad(gram, (0, self._missing, 0, self._missing)) if self._missing else gram


@final
class Matrices(Followed):
    """Equal matrices, of which a block of leading left vectors is followed by power steps."""

    block = TUNING.block

    def __init__(self, layers: Sequence[ConstrainedLayer]) -> None:
        self.names, self.kernels = tuple(layer.name for layer in layers), layers[0].groups
        self._layers = list(layers)
        like = stacked([layers[0].weight])
        rows, columns = like.shape[1] // self.kernels, like[0, 0].numel()
        self._is_tall, side = rows > columns, min(rows, columns)
        self._begin(side, side, (layer.generator() for layer in layers), like)

    def parameters(self) -> list[list[Tensor]]:
        return [[layer.weight for layer in self._layers]]

    def read(self) -> Tensor:
        stack = stacked(self.parameters()[0])
        self._stored = stack.reshape(self.count, -1, stack[0, 0].numel())
        return self._stored

    def normalize(self, unit: Tensor, bound: Tensor) -> None:
        weights = finite(self._stored).mul_(unit[:, None, None])
        self._weights = weights.mT if self._is_tall else weights

    def send(self) -> Tensor:
        known = self.state["vectors"]
        images = torch.bmm(known, self._weights)
        self._vectors = torch.baddbmm(known, images, self._weights.mT, beta=SHARE_KEPT)
        return self._padded(torch.bmm(self._vectors, self._vectors.mT))

    def refresh(self, whitening: Tensor) -> Tensor:
        known = self.state["vectors"]
        k = known.shape[1]
        torch.bmm(whitening[:, :k, :k], self._vectors, out=known)
        self._images = torch.bmm(known, self._weights)
        return self._padded(torch.bmm(self._images, self._images.mT))

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        known = self.state["vectors"]
        k = known.shape[1]
        change = torch.bmm(known.mT, torch.bmm(cuts[:, :k, :k], self._images))
        change = change.mT if self._is_tall else change
        new = scaled(self._stored, scale, change)
        return [new.view(len(self.names), *self._layers[0].weight.shape)]


@final
class Blocks(Kind):
    """Maps with blocks of one size: the singular values within these are clipped at once.

    Those whose rank is at most that are clipped exactly.
    """

    def __init__(self, groups: Sequence[Followed], by_products: bool) -> None:
        self.groups: Sequence[Followed] = list(groups)
        self._by_products = by_products
        vectors = [group.state["vectors"] for group in groups]
        self._eye = unit_matrix(groups[0].block, vectors[0])

    def refresh(self) -> None:
        grams = joined([group.send() for group in self.groups])
        roots = whitening(grams, self._eye, self._by_products)
        parts = roots.split([group.count for group in self.groups])
        self._grams = joined([g.refresh(own) for g, own in zip(self.groups, parts, strict=True)])

    def norms(self) -> Tensor:
        """From above: by at most 11 %, if all values of a block are equal."""
        size = torch.linalg.vector_norm(self._grams, dim=(1, 2)).clamp_min(TINY)
        power = self._grams / size[:, None, None]
        for _ in range(3):
            power = power @ power
        top: Tensor = torch.linalg.vector_norm(power, dim=(1, 2)) ** (1 / 16)
        whole: Tensor = top * size.sqrt()
        return whole

    def measured(self) -> Tensor:
        squares: Tensor = torch.linalg.eigvalsh(decomposable(self._grams))[:, -1]
        return squares.clamp_min(0).sqrt().to(self._grams)

    def find(self, target: Tensor, most: Tensor) -> Found:
        """What is above the target within the blocks."""
        limit = target / most
        for group, own in zip(self.groups, slices(self.groups), strict=True):
            group.limit = limit[own]
        above = surplus(self._grams / limit.square()[:, None, None], self._eye)
        is_above = torch.linalg.vector_norm(above, dim=(1, 2)) > 0
        return Found(most, is_above, above * -most[:, None, None])
