"""Dense layers, and others whose windows do not overlap: matrices, clipped within a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectralclip._training.engine.constrained_layer import ConstrainedLayer
from spectralclip._training.engine.group import Group, Move, stacked
from spectralclip._training.engine.small import TINY, inverse_root
from spectralclip._training.engine.tuning import TUNING

SHARE_KEPT = 1e-6  # of a vector in a power step


@final
class Matrices(Group):
    """Equal matrices, of which a block of leading left vectors is followed by power steps.

    All singular values within the block are clipped at once, so that matrices whose smaller side
    fits into the block are clipped exactly.
    """

    def __init__(
        self, layers: Sequence[ConstrainedLayer], generators: Sequence[torch.Generator]
    ) -> None:
        self.names, self.kernels = tuple(layer.name for layer in layers), layers[0].groups
        self._layers = list(layers)
        like = stacked([layers[0].weight])
        rows, columns = like.shape[1] // self.kernels, like[0, 0].numel()
        self._is_tall = rows > columns
        side = min(rows, columns)
        self.width = min(TUNING.block, side)
        shape = (self.kernels, side, self.width)
        draws = [torch.randn(shape, generator=g, device="cpu") for g in generators]
        self.state = {
            "vectors": torch.linalg.qr(torch.cat(draws))[0].mT.contiguous().to(like),
        }

    def parameters(self) -> list[list[Tensor]]:
        return [[layer.weight for layer in self._layers]]

    def read(self) -> Tensor:
        stack = stacked(self.parameters()[0])
        stack = stack.reshape(self.count, -1, stack[0, 0].numel())
        self._weights = stack.mT if self._is_tall else stack
        self._images = torch.bmm(self.state["vectors"], self._weights)
        return self._images.abs().amax((1, 2))

    def normalize(self, unit: Tensor, bound: Tensor, is_sound: Tensor) -> None:
        self._unit, self._bound = unit[:, None, None], bound[:, None, None]
        self._is_sound = is_sound[:, None, None]

    def look(self) -> Tensor:
        """A power step; the Gram matrix of what it leaves, as large as a block."""
        known = self.state["vectors"]
        # Of a matrix of zeros, the vectors stay as they are.
        back = torch.bmm(self._images * self._unit, self._weights.mT).mul_(self._unit)
        self._vectors = torch.where(self._is_sound, torch.add(back, known, alpha=SHARE_KEPT), known)
        return self._padded(torch.bmm(self._vectors, self._vectors.mT))

    def orthonormalize(self, inverse_root: Tensor) -> Tensor:
        """Take the vectors as this makes them; the Gram matrix of their images."""
        k = self.width
        known = torch.bmm(inverse_root[:, :k, :k], self._vectors, out=self.state["vectors"])
        images = torch.bmm(known, self._weights).mul_(self._unit)
        self._images = torch.where(self._is_sound, images, 0)
        return self._padded(torch.bmm(self._images, self._images.mT))

    def _padded(self, gram: Tensor) -> Tensor:
        missing = TUNING.block - self.width
        return pad(gram, (0, missing, 0, missing)) if missing else gram

    def move(self, step: Move) -> list[Tensor]:
        k = self.width
        above = torch.bmm(step.multipliers[:, :k, :k], self._images * self._bound)
        scaled = self._weights * step.whole[:, None, None]
        new = torch.baddbmm(scaled, self.state["vectors"].mT, above, alpha=-1)
        return [self._as_stored(torch.where(step.is_touched[:, None, None], new, self._weights))]

    def old(self) -> list[Tensor]:
        return [self._as_stored(self._weights)]

    def _as_stored(self, weights: Tensor) -> Tensor:
        weights = weights.mT if self._is_tall else weights
        return weights.reshape(len(self.names), *self._layers[0].weight.shape)


def inverse_roots(grams: Tensor, by_products: bool) -> Tensor:
    """What makes vectors of these Gram matrices orthonormal, whatever their lengths."""
    sizes = grams.diagonal(dim1=1, dim2=2).clamp_min(TINY).rsqrt()[:, None]
    return inverse_root(grams * sizes * sizes.mT, by_products) * sizes
