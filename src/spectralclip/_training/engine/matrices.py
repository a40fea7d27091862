"""Dense layers, and others whose windows do not overlap: matrices, clipped within a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
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
from spectralclip._training.engine.small import SQUARED, surplus, unit_matrix, whitening
from spectralclip._training.engine.tuning import TUNING

SHARE_KEPT = 1e-6  # of a vector in a power step: those of a matrix of zeros stay as they are


class Block(Group):
    """Maps whose singular values are clipped within a small matrix.

    Attributes:
        limit: Of each kernel, in the units of its weights: values above are clipped to it.
    """

    limit: Tensor


@final
class Matrices(Block):
    """Equal matrices, of which a block of leading left vectors is followed by power steps."""

    def __init__(self, layers: Sequence[ConstrainedLayer]) -> None:
        self.names, self.kernels = tuple(layer.name for layer in layers), layers[0].groups
        self._layers = list(layers)
        like = stacked([layers[0].weight])
        rows, columns = like.shape[1] // self.kernels, like[0, 0].numel()
        self._is_tall, side = rows > columns, min(rows, columns)
        shape = (self.kernels, side, min(TUNING.block, side))
        draws = [torch.randn(shape, generator=layer.generator(), device="cpu") for layer in layers]
        self.state = {"vectors": torch.linalg.qr(torch.cat(draws))[0].mT.contiguous().to(like)}
        self.is_seen_whole = side <= TUNING.block

    def parameters(self) -> list[list[Tensor]]:
        return [[layer.weight for layer in self._layers]]

    def read(self) -> Tensor:
        stack = stacked(self.parameters()[0])
        self._stored = stack.reshape(self.count, -1, stack[0, 0].numel())
        return self._stored

    def normalize(self, unit: Tensor, bound: Tensor, is_finite: bool) -> None:
        weights = finite(self._stored).mul_(unit[:, None, None])
        self._weights = weights.mT if self._is_tall else weights

    def send(self) -> Tensor:
        """A power step; the Gram matrix of what it leaves."""
        known = self.state["vectors"]
        images = torch.bmm(known, self._weights)
        self._vectors = torch.baddbmm(known, images, self._weights.mT, beta=SHARE_KEPT)
        return padded(torch.bmm(self._vectors, self._vectors.mT), TUNING.block)

    def refresh(self, whitening: Tensor) -> Tensor:
        """Take the vectors as this makes them; the Gram matrix of their images."""
        known = self.state["vectors"]
        k = known.shape[1]
        torch.bmm(whitening[:, :k, :k], self._vectors, out=known)
        self._images = torch.bmm(known, self._weights)
        return padded(torch.bmm(self._images, self._images.mT), TUNING.block)

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        known = self.state["vectors"]
        k = known.shape[1]
        change = torch.bmm(known.mT, torch.bmm(cuts[:, :k, :k], self._images))
        change = change.mT if self._is_tall else change
        new = scaled(self._stored, scale, change)
        return [new.view(len(self.names), *self._layers[0].weight.shape)]


class Blocks(Kind):
    """Maps with small matrices of one size: the singular values of these are clipped at once."""

    _grams: Tensor  # of each, squares of the singular values
    _eye: Tensor

    def __init__(self, groups: Sequence[Block]) -> None:
        self.groups: Sequence[Block] = list(groups)

    def norms(self) -> Tensor:
        """From above: by at most 11 %, if all values of a block are equal."""
        size = torch.linalg.vector_norm(self._grams, dim=(1, 2)).clamp_min(SQUARED)
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


@final
class FollowedBlocks(Blocks):
    """Matrices with a block of vectors each; those of smaller sides are clipped exactly."""

    def __init__(self, groups: Sequence[Matrices], by_products: bool) -> None:
        super().__init__(groups)
        self._matrices, self._by_products = groups, by_products
        self._eye = unit_matrix(TUNING.block, groups[0].state["vectors"])

    def refresh(self) -> None:
        grams = joined([group.send() for group in self._matrices])
        roots = whitening(grams, self._eye, self._by_products)
        parts = roots.split([group.count for group in self._matrices])
        pairs = zip(self._matrices, parts, strict=True)
        self._grams = joined([group.refresh(own) for group, own in pairs])


def padded(gram: Tensor, side: int) -> Tensor:
    """With zeros, as large as others."""
    missing = side - gram.shape[-1]
    return pad(gram, (0, missing, 0, missing)) if missing else gram
