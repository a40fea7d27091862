"""What all groups of equally shaped layers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._operators import HALF_PRECISION


@final
@dataclass(frozen=True)
class Move:
    """What a step does to the kernels of a group.

    Attributes:
        scale: What kernels are multiplied with, in their units.
        whole: The same, together with what the choice of the unit has made of huge ones.
        multipliers: What is then taken off: how far to go along each cut, or of matrices what is
            above within a block.
        planes: The same of cuts, times the bound, for each plane of a complex vector.
        is_touched: Kernels that change at all; the others stay bit for bit.
    """

    scale: Tensor
    whole: Tensor
    multipliers: Tensor
    planes: Tensor
    is_touched: Tensor


class Group(ABC):
    """Equally shaped layers, of one or more kernels each, that move in the same tensor operations.

    Attributes:
        names: The layers.
        kernels: Independent maps that each layer consists of, as the groups of a convolution.
        degree: Of the layer in what moves: it is multiplied with `s^degree` where that is with s.
        state: What is remembered from step to step, each `(kernels of all layers, ...)`.
    """

    names: tuple[str, ...]
    kernels: int
    state: dict[str, Tensor]
    degree: float = 1.0
    _weights: Tensor

    @abstractmethod
    def parameters(self) -> list[list[Tensor]]:
        """What moves: by parameter of a layer, that of each layer."""

    @abstractmethod
    def read(self) -> Tensor:
        """Take in the weights as they are; the largest entry of each kernel as it acts."""

    @abstractmethod
    def normalize(self, unit: Tensor, bound: Tensor, is_sound: Tensor) -> None:
        """Take kernels in a unit each, and as they were where not sound.

        Args:
            unit: What kernels are multiplied with: the inverse of the bound, or less where the
                weights are far above it.
            bound: Of each kernel.
            is_sound: Where all is finite.

        """

    def shrink(self, index: int, factor: float) -> None:
        """Scale one of the layers, by the host."""
        share = factor ** (1 / self.degree)
        for tensors in self.parameters():
            tensors[index].mul_(share)
        if "weights" in self.state:
            own = slice(index * self.kernels, (index + 1) * self.kernels)
            self.state["weights"][own].mul_(share)

    def settle(self) -> None:
        """Take the weights as they are for those of the last step."""
        if "weights" in self.state:
            self.state["weights"].copy_(self._weights)

    @abstractmethod
    def move(self, step: Move) -> list[Tensor]:
        """The parameters after the step, stacked over layers, as `parameters()` lists them."""

    @abstractmethod
    def old(self) -> list[Tensor]:
        """The parameters before it."""

    @property
    def count(self) -> int:
        """The kernels of all layers."""
        return len(self.names) * self.kernels


class CutGroup(Group):
    """A group that is followed by singular pairs, of which the largest make cuts.

    Attributes:
        width: Vectors that are followed at each place.
    """

    width: int

    @abstractmethod
    def keep(self, mix: Tensor, values: Tensor) -> None:
        """Go on with the leading vectors of the space that was looked at, and their values."""

    @abstractmethod
    def cuts(self, places: Tensor, values: Tensor) -> Tensor:
        """Take some of the values for cuts; products of their gradients, each times its value."""


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """The parameters of equal layers in one tensor, in the precision of computation."""
    only = len(tensors) == 1
    together = tensors[0].detach()[None] if only else torch.stack([t.detach() for t in tensors])
    return together.float() if together.dtype in HALF_PRECISION else together


def of_unit_size(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of each layer over the length of the longest, whose square might overflow."""
    size = torch.linalg.vector_norm(gradients, ord=torch.inf, dim=(1, 2)).clamp_min(1e-30)
    scaled = gradients / size[:, None, None]
    length = torch.linalg.vector_norm(scaled, dim=2).amax(1).clamp_min(1e-30)
    return scaled / length[:, None, None], (size * length)[:, None]


def largest(values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The largest of each row with their places; zeros where there are not so many."""
    missing = most - values.shape[1]
    values = torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values
    top, places = torch.topk(values, most)
    return top, places.clamp(max=values.shape[1] - 1 - max(missing, 0)) if missing > 0 else places
