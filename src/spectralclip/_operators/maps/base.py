"""Linear maps on flat batches: what every one of them can do, and what some know better.

Maps act on matrices `(k, n)` whose rows are vectors in the layout that the map likes: for
convolutions on a CPU that is channels-last, which up to halves the time of an application.
`Layout` says how a row is read as a tensor.

A kind of map is one class. It has to give the two products; whatever else it knows of itself (its
weight, its blocks, its Frobenius norm, which positions it couples) it says by overriding a method
here. The defaults are right for any map, and know nothing. Nobody else asks a map for its type.
`SHORTCUTS` in `_operators/build.py` says which modules get which map.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from spectralclip._common import Shape

if TYPE_CHECKING:
    from spectralclip._operators.blocks import BlockForm
    from spectralclip._operators.maps.conv import ConvMap

Adjoint = Callable[[Tensor], Tensor]


class Layout(NamedTuple):
    """How a flat row is read as a tensor: channels first (as in torch), or last."""

    shape: Shape
    channels_last: bool = False

    def to_tensor(self, rows: Tensor) -> Tensor:
        """`(k, n)` rows as a view of shape `(k, *shape)`."""
        if not self.channels_last:
            return rows.reshape(-1, *self.shape)
        channels, *space = self.shape
        return rows.reshape(-1, *space, channels).movedim(-1, 1)

    def to_rows(self, x: Tensor) -> Tensor:
        """A batch `(k, *shape)` as rows; a view where the memory is in this order already."""
        return (x.movedim(1, -1) if self.channels_last else x).reshape(x.shape[0], self.size)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def length(self, axis: int) -> int:
        """Positions along an axis, counted with the channels; one where there is no such axis."""
        return self.shape[axis] if axis < len(self.shape) else 1

    def converted(self, rows: Tensor, other: Layout) -> Tensor:
        """Rows of this layout as rows of another one."""
        if self.channels_last == other.channels_last:
            return rows
        return other.to_rows(self.to_tensor(rows))


class LinearMap(ABC):
    """A linear map on rows, with its transpose."""

    source: Layout  # how rows of inputs are read
    target: Layout  # how rows of outputs are read
    weight: Tensor | None = None  # what the map is linear in, and consists of
    channel_factors: Tensor | None = None  # of a map that multiplies each channel by a number
    is_identity: bool = False  # whether it changes no number; it may change the shape
    is_transposed: bool = False  # whether it is another one, read backwards
    is_explicit: bool = True  # whether it has a form of its own, and is not a layer's code
    keeps_positions: bool = False  # whether each number stays where it is, and its size changes
    channel_axis: int = 0  # of the target, which rows of `weight` are: the first, or -1 the last
    # In how many equal runs of channels the map is block diagonal: 0 where each channel stands
    # alone, 1 where all may mix.
    channel_groups: int = 1

    # --- The two products ---

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """`M x` for each row x."""

    @abstractmethod
    def adjoint(self, rows: Tensor) -> Tensor:
        """`M^T y` for each row y."""

    def linearize(self, rows: Tensor) -> tuple[Tensor, Adjoint]:
        """`M x`, and an adjoint that may reuse what that computed."""
        return self.forward(rows), self.adjoint

    # --- Other maps made from this one ---

    def transpose(self) -> LinearMap:
        """`M^T` as a map."""
        return TransposedMap(self)

    def with_weight(self, weight: Tensor) -> LinearMap:
        """The same map with other numbers, for maps that have a `weight`."""
        raise TypeError(f"{type(self).__name__} has no weight that could be replaced.")

    def scaled(self, outputs: Tensor | None, inputs: Tensor | None) -> LinearMap | None:
        """The map with its output or input channels multiplied; None where it is no plain map."""
        return None

    # --- What the map knows of itself ---

    @property
    def convolution(self) -> ConvMap | None:
        """The convolution that the map is, or whose transpose it is."""
        return None

    def weight_gradients(self, U: Tensor, V: Tensor) -> Tensor:
        """The gradients of `<u_i, M v_i>` in the weight, for flat rows: `(k, *weight.shape)`."""
        raise TypeError(f"{type(self).__name__} has no weight to take a gradient in.")

    def block_form(self) -> BlockForm | None:
        """The map, or its transpose, as small matrices, where it is block diagonal."""
        return None

    def frobenius_sq(self) -> float | None:
        """`||M||_F^2`; None where it has no closed form."""
        return None

    def reach(self, axis: int) -> Tensor:
        """Which positions of the source a position of the target may depend on, along an axis."""
        rows, columns = self.target.length(axis), self.source.length(axis)
        if self.keeps_positions:
            return torch.eye(rows, dtype=torch.bool, device="cpu")
        return torch.ones(rows, columns, dtype=torch.bool, device="cpu")

    def absolute_norm(self, device: torch.device) -> float:
        """At least the 2-norm of `|M|`, entrywise, zero only if M is; here the Frobenius norm."""
        unit = torch.eye(self.source.size, dtype=torch.float64, device=device)
        matrix = torch.cat([self.forward(part) for part in unit.split(256)])
        largest = float(matrix.abs().max())  # keeps the squares in range
        return largest * float((matrix / largest).norm()) if largest else 0.0

    @property
    def rounding_terms(self) -> float:
        """At least the number of products in a sum, forward and backward together."""
        return 4.0 * (self.source.size + self.target.size)


@final
class TransposedMap(LinearMap):
    """A map read backwards."""

    is_transposed = True

    def __init__(self, inner: LinearMap) -> None:
        self.inner = inner
        self.source, self.target = inner.target, inner.source
        self.weight, self.channel_factors = inner.weight, inner.channel_factors
        self.is_explicit, self.is_identity = inner.is_explicit, inner.is_identity
        self.keeps_positions = inner.keeps_positions
        self.channel_groups = inner.channel_groups

    def forward(self, rows: Tensor) -> Tensor:
        return self.inner.adjoint(rows)

    def adjoint(self, rows: Tensor) -> Tensor:
        return self.inner.forward(rows)

    def transpose(self) -> LinearMap:
        return self.inner

    def with_weight(self, weight: Tensor) -> LinearMap:
        return TransposedMap(self.inner.with_weight(weight))

    def scaled(self, outputs: Tensor | None, inputs: Tensor | None) -> LinearMap | None:
        inner = self.inner.scaled(inputs, outputs)
        return None if inner is None else TransposedMap(inner)

    @property
    def convolution(self) -> ConvMap | None:
        return self.inner.convolution

    def weight_gradients(self, U: Tensor, V: Tensor) -> Tensor:
        return self.inner.weight_gradients(V, U)

    def block_form(self) -> BlockForm | None:
        return self.inner.block_form()

    def frobenius_sq(self) -> float | None:
        return self.inner.frobenius_sq()

    def reach(self, axis: int) -> Tensor:
        return self.inner.reach(axis).T

    def absolute_norm(self, device: torch.device) -> float:
        return self.inner.absolute_norm(device)

    @property
    def rounding_terms(self) -> float:
        return self.inner.rounding_terms


def geometric_mean_of_sums(rows: Tensor, columns: Tensor) -> float:
    """The geometric mean of the largest row and column sum: a bound on the 2-norm of `|M|`."""
    return math.sqrt(float(rows.max())) * math.sqrt(float(columns.max()))


def adjoint_gap(x: Tensor, y: Tensor, image: Tensor, back: Tensor) -> tuple[float, float, float]:
    """`<image, y>` and `<x, back>`, and how far they are apart, relative to the lengths.

    In float64 and in units of the largest entry, since squares of extreme numbers leave the range.
    """
    x, y, image, back = (row.cpu().double() for row in (x, y, image, back))
    unit = max(float(image.abs().max()), float(back.abs().max())) or 1.0
    image, back = image / unit, back / unit
    left, right = float(torch.sum(image * y)), float(torch.sum(x * back))
    size = float(image.norm() * y.norm() + x.norm() * back.norm())
    return left * unit, right * unit, abs(left - right) / size if size else 0.0
