"""One of the two factors of a product that is bounded as a whole, as of queries and keys.

A head's queries are some units of a dense layer, with weights that lie in rows of a parameter or
in columns, and with offsets. `Factor` is their matrix, `(units, inputs)`, or the transpose of it.
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@final
class Factor(nn.Module):
    """`x -> A x` or `y -> s A^T y`, for the matrix A of some units of another module's weight.

    Attributes:
        whole: The parameter, as its owner has it.
        units: Which of its rows or columns.
        in_rows: Whether units are rows of the parameter, as those that a dense layer makes.
        offset: The parameter of all offsets, of which those of the units are the last column of A,
            for inputs that end in 1; None where there are none.
        offset_units: Which of them.
        is_last: Whether it is the second of the two, which is transposed and scaled.
        scale: Of the product.
    """

    def __init__(
        self,
        whole: nn.Parameter,
        units: slice,
        *,
        in_rows: bool,
        offset: nn.Parameter | None = None,
        offset_units: slice | None = None,
        is_last: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.whole, self.offset = whole, offset
        self.units, self.in_rows = units, in_rows
        self.offset_units = units if offset_units is None else offset_units
        self.is_last, self.scale = is_last, scale

    def views(self) -> list[Tensor]:
        """The weights `(units, inputs)` and the offsets `(units, 1)`, in the parameters' memory."""
        weights = self.whole[self.units] if self.in_rows else self.whole[:, self.units].T
        return [weights] if self.offset is None else [weights, self.offset[self.offset_units, None]]

    @property
    def weight(self) -> Tensor:
        """The matrix that it multiplies by."""
        views = self.views()
        matrix = views[0] if len(views) == 1 else torch.cat(views, 1)
        return self.scale * matrix.T if self.is_last else matrix

    @property
    def in_features(self) -> int:
        """The length of an input."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """The length of an output."""
        return self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """The matrix on the last axis."""
        return F.linear(x, self.weight)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.in_features} -> {self.out_features}"
