"""What all groups of equally shaped layers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._operators import HALF_PRECISION
from spectralclip._training.engine.tuning import TUNING


class Group(ABC):
    """Equally shaped layers, of one or more kernels each, that move in the same tensor operations.

    Attributes:
        names: The layers.
        kernels: Independent maps that each layer consists of, as the groups of a convolution.
        degree: Of the layer in what moves: it is multiplied with `s^degree` where that is with s.
        state: What is remembered from step to step, each `(kernels of all layers, ...)`.
        is_seen_whole: Whether one refresh shows all, even of weights that have been replaced.
        alone: One of the layers as a group, which remembers the same of it.
        at_start: What there was to remember of one of the layers at first: vectors at random.
    """

    names: tuple[str, ...]
    kernels: int
    state: dict[str, Tensor]
    degree: float = 1.0
    is_seen_whole: bool = False
    alone: Callable[[int], Group]
    at_start: Callable[[int], dict[str, Tensor]]

    @abstractmethod
    def parameters(self) -> list[list[Tensor]]:
        """What moves: by parameter of a layer, that of each layer."""

    @abstractmethod
    def read(self) -> Tensor:
        """Take in the weights as they are; the entries of each kernel as it acts."""

    @abstractmethod
    def normalize(self, unit: Tensor, bound: Tensor, is_finite: bool) -> None:
        """Take kernels in a unit each.

        Args:
            unit: What kernels are multiplied with: the inverse of the bound, or less where the
                weights are far above it; zero where not all is finite.
            bound: Of each kernel.
            is_finite: Whether all that was taken in is known to be finite.
        """

    @abstractmethod
    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        """The parameters after the step, stacked over layers, as `parameters()` lists them.

        Args:
            scale: What kernels are multiplied with before they are cut; one for those that stay as
                they are, bit for bit.
            cuts: Times the bound, how much of each cut to add, which is never above zero; of
                matrices what to add within a block; of batch norms what factors are clamped to.
                Zeros for those that stay as they are.
        """

    def shrink(self, index: int, factor: float) -> None:
        """Scale one of the layers, by the host."""
        for tensors in self.parameters():
            tensors[index].mul_(factor ** (1 / self.degree))

    @property
    def count(self) -> int:
        """The kernels of all layers."""
        return len(self.names) * self.kernels


@final
@dataclass(frozen=True)
class Found:
    """What was seen of some kernels, in units of their bounds.

    Attributes:
        scale: What to multiply them with before they are cut.
        is_above: Where there is something to cut.
        cuts: As `moved` takes them, in units of the bound.
    """

    scale: Tensor
    is_above: Tensor
    cuts: Tensor


class Kind(ABC):
    """Groups that are followed in the same way, and share what does not depend on their shapes.

    Attributes:
        groups: The kernels of all stand one behind another in each tensor.
        rounds: How often to step after each step of the optimizer.
        near: Times the bound: what is further above is scaled before it is cut.
        lags: Whether what grows has grown further than is seen.
    """

    groups: Sequence[Group]
    rounds: int = 1
    near: float = TUNING.far
    lags: bool = False

    @abstractmethod
    def refresh(self) -> None:
        """Refresh what is known of the weights that the groups have taken in."""

    @abstractmethod
    def norms(self) -> Tensor:
        """The norms that were seen, in the units of the weights."""

    def measured(self) -> Tensor:
        """The same for the host, which may take longer."""
        return self.norms()

    @abstractmethod
    def find(self, target: Tensor, most: Tensor) -> Found:
        """What to do to bring all kernels to their targets.

        Args:
            target: In units of the bound.
            most: What to multiply them with at most, which is never above one.
        """

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        """The parameters of all groups after the step."""
        found = []
        for group, own in zip(self.groups, slices(self.groups), strict=True):
            found += group.moved(scale[own], cuts[own])
        return found


def slices(groups: Sequence[Group]) -> list[slice]:
    """Where the kernels of each group are, one behind another."""
    found, start = [], 0
    for group in groups:
        found.append(slice(start, start + group.count))
        start += group.count
    return found


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors one behind another; the only one itself."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """The parameters of equal layers in one tensor, in the precision of computation."""
    only = len(tensors) == 1
    together = tensors[0].detach()[None] if only else torch.stack([t.detach() for t in tensors])
    return together.float() if together.dtype in HALF_PRECISION else together


def finite(tensor: Tensor) -> Tensor:
    """With zeros for what is not; an eighth of the time that a mask by kernel takes on a CPU."""
    return torch.nan_to_num(tensor, 0.0, 0.0, 0.0)


def scaled(kernels: Tensor, scale: Tensor, change: Tensor | None = None) -> Tensor:
    """Kernels times a number each, and with a change; contiguous, whatever the order of those."""
    times = broadcast(scale, kernels)
    # A compiler does not care for places.
    place = None if torch.compiler.is_compiling() else kernels.new_empty(kernels.shape)
    if change is None:
        return torch.mul(kernels, times, out=place).contiguous()
    return torch.addcmul(change, kernels, times, out=place).contiguous()


def broadcast(values: Tensor, like: Tensor) -> Tensor:
    """A number for each kernel, along all other axes of a tensor."""
    return values.view(-1, *[1] * (like.ndim - 1))
