"""Layers that are followed by singular pairs, of which the largest are cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectralclip._training.engine.group import Found, Group, Kind, joined
from spectralclip._training.engine.small import (
    TINY,
    leading,
    multipliers,
    quarter_turns,
    unit_matrix,
)
from spectralclip._training.engine.tuning import TUNING

SMALLEST = 1e-6  # times the bound: values that never make a cut


class Follower(ABC):
    """Groups whose singular pairs are looked for together, by a step of block Lanczos.

    Attributes:
        groups: Of which it consists.
        width: Vectors that are followed at each place.
        rounds: How often to step after each step of the optimizer.
    """

    groups: Sequence[Group]
    width: int
    rounds: int = 1

    @abstractmethod
    def refresh(self) -> list[tuple[Tensor, Tensor]]:
        """Send the known vectors through the layers and back, and what comes back once more.

        Returns:
            By group, Gram matrices of the planes of both together, and of their images.
        """

    @abstractmethod
    def keep(self, mix: Tensor) -> None:
        """Go on with the leading vectors of the space that was searched."""

    @abstractmethod
    def cuts(self, places: Tensor, values: Tensor) -> Tensor:
        """Take some of the values for cuts; products of their gradients, each times its value."""


@final
class Cuts(Kind):
    """All layers that are cut; those of equally many vectors are solved for at once.

    Args:
        followers: Of any width.
        by_products: Without factorizations, for devices that have none.
    """

    near = 1 + TUNING.most
    lags = True

    def __init__(self, followers: Sequence[Follower], by_products: bool) -> None:
        self._followers = sorted(followers, key=lambda one: one.width)
        self.groups = [group for one in self._followers for group in one.groups]
        self.rounds = max(one.rounds for one in followers)
        self._by_products = by_products
        like = self.groups[0].state["vectors"]
        self._tables = {
            width: (quarter_turns(2 * width, like), unit_matrix(4 * width, like))
            for width in sorted({one.width for one in followers})
        }
        self._eye = unit_matrix(TUNING.cuts, like)

    def refresh(self) -> None:
        chosen = []
        for width, (turns, eye) in self._tables.items():
            own = [one for one in self._followers if one.width == width]
            grams = [one.refresh() for one in own]
            sizes = [sum(len(basis) for basis, _ in pairs) for pairs in grams]
            bases, images = zip(*(pair for pairs in grams for pair in pairs), strict=True)
            planes = torch.cat(bases + images).unflatten(0, (2, -1))
            mix, values = leading(planes, turns, eye, by_products=self._by_products)
            for one, part, found in zip(own, mix.split(sizes), values.split(sizes), strict=True):
                one.keep(part)
                count = sum(group.count for group in one.groups)
                chosen.append(_largest(found.reshape(count, -1)))
        self._values = joined([values for values, _ in chosen])
        self._chosen = chosen

    def norms(self) -> Tensor:
        return self._values[:, 0]

    def find(self, target: Tensor, most: Tensor) -> Found:
        """The nearest point at which none of the leading values is above its target.

        Where more values are above the bound than there are cuts, the layer is scaled first.
        """
        pairs, values = zip(self._followers, self._chosen, strict=True), self._values
        products = joined([one.cuts(places, own) for one, (own, places) in pairs])
        scale = torch.minimum(values[:, -1].clamp_min(TINY).reciprocal(), most)
        inverse = values.reciprocal().masked_fill(values <= SMALLEST, 0)
        Q = products * (inverse[:, :, None] * inverse[:, None])
        excess = torch.addcmul(-target[:, None], values, scale[:, None])
        factors = multipliers(Q, excess, self._eye, TUNING.rounds)
        return Found(scale, factors.amax(1) > 0, -factors * inverse)


def of_unit_size(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of each layer over the largest entry, whose square might overflow, and that."""
    size = gradients.abs().amax((1, 2)).clamp_min(TINY)[:, None]
    return gradients / size[..., None], size


def _largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row with their places; zeros where there are not so many."""
    count = values.shape[1]
    values = pad(values, (0, TUNING.cuts - count)) if count < TUNING.cuts else values
    top, places = torch.topk(values, TUNING.cuts)
    return top, places.clamp(max=count - 1) if count < TUNING.cuts else places
