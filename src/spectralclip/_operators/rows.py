"""Rows of a weight that belongs to another module, as a dense layer of their own.

Recurrent layers and attention keep several matrices in one parameter, and use it without calling
a module for each. `Rows` is such a matrix as a layer: it refers to the parameter as a whole, so
that optimizers, checkpoints and shards know it, and computes with its rows alone.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch.nn.functional as F
from torch import Tensor, nn


@final
class Rows(nn.Module):
    """`x -> W x` for some rows W of a parameter of another module.

    Attributes:
        whole: The parameter, as its owner has it.
        rows: Which rows of it.
        label: What they are called there, as `weight_ih_l0[forget]`.
        owner: The type of the module that has the parameter, for people to read.
    """

    def __init__(self, whole: nn.Parameter, rows: slice, label: str, owner: str) -> None:
        super().__init__()
        self.whole, self.label, self.owner = whole, label, owner
        self.rows = slice(*rows.indices(len(whole)))

    @property
    def weight(self) -> Tensor:
        """The rows, as a view: what is written into it is written into the parameter."""
        return self.whole[self.rows]

    @property
    def in_features(self) -> int:
        """The length of an input."""
        return self.whole.shape[1]

    @property
    def out_features(self) -> int:
        """The number of rows."""
        return self.rows.stop - self.rows.start

    def forward(self, x: Tensor) -> Tensor:
        """The matrix on the last axis."""
        return F.linear(x, self.weight)

    def extra_repr(self) -> str:
        """The name, and the sizes."""
        return f"{self.label}, {self.in_features} -> {self.out_features}"


class Place(NamedTuple):
    """Where in memory a tensor lies: whose it is, and from which number to which.

    Some columns of a matrix are in every row of it, `period` numbers apart: then `first` and `last`
    tell which, from 0 to the period.
    """

    storage: int
    start: int
    stop: int
    period: int = 0
    first: int = 0
    last: int = 0

    @staticmethod
    def of(tensor: Tensor) -> Place:
        """The place of a tensor that holds its own numbers, of a parameter or of parts of it."""
        start = int(tensor.storage_offset())
        steps = sorted(zip(tensor.stride(), tensor.shape, strict=True))
        reach = 1 + sum((size - 1) * stride for stride, size in steps)
        place = Place(tensor.untyped_storage()._cdata, start, start + int(reach))
        if len(steps) != 2 or steps[0][0] != 1 or steps[0][1] == steps[1][0]:
            return place
        period, first = steps[1][0], start % steps[1][0]
        return place._replace(period=period, first=first, last=first + steps[0][1])

    def meets(self, other: Place) -> bool:
        """Whether what is written into one may change the other."""
        if self.storage != other.storage:
            return False
        if self.period and self.period == other.period:
            return self.first < other.last and other.first < self.last
        return self.start < other.stop and other.start < self.stop
