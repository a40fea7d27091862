"""Two functions on arrays of another library as a map: a product and its transpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._common import Shape, one_line
from spectralclip._operators.arrays import as_tensor
from spectralclip._operators.maps.base import Layout, LinearMap


@final
@dataclass(frozen=True)
class ArrayFunction:
    """A function on arrays, as one on batches of tensors.

    Attributes:
        apply: The function: of one array, or of a batch of them where it is `batched`.
        role: Its name, for errors.
        source: The shape of one input.
        target: The shape of one output.
        arrays: What it takes: "numpy" or "torch".
        batched: Whether it takes and returns batches, with one leading dimension.
    """

    apply: Callable[[Any], Any]
    role: str
    source: Shape
    target: Shape
    arrays: str
    batched: bool

    @property
    def __name__(self) -> str:
        return self.role

    def __call__(self, x: Tensor) -> Tensor:
        found = self.answer(x)
        if found.dtype.itemsize < x.dtype.itemsize:
            raise ValueError(
                f"{self.role} answers in {found.dtype} where it is given {x.dtype}: the digits "
                f"beyond are lost. Give dtype={found.dtype}."
            )
        return found.to(x.device, x.dtype)

    def answer(self, x: Tensor) -> Tensor:
        """What the function makes of a batch, in the precision that it answers in."""
        if self.batched:
            # A copy: the next call may write into the same tensor.
            return self._called(x, (x.shape[0], *self.target)).clone()
        return torch.stack([self._called(row, self.target) for row in x])

    def _called(self, x: Tensor, expected: Shape) -> Tensor:
        given: Any = x.clone()  # it may work in place
        given = given.cpu().numpy() if self.arrays == "numpy" else given
        try:
            returned = self.apply(given)
        except Exception as error:
            hint = 'arrays="torch" hands tensors over'
            if self.arrays == "torch":
                hint = 'dtype=torch.float64 hands that precision over, arrays="numpy" NumPy arrays'
            raise ValueError(
                f"{self.role} cannot be applied to {_described(given)}: {type(error).__name__}: "
                f"{one_line(error)} ({hint}, and batched=True batches of them)."
            ) from error
        found = as_tensor(returned, f"What {self.role} returns")
        if tuple(found.shape) != expected:
            raise ValueError(
                f"{self.role} makes shape {tuple(found.shape)} from {_described(given)}, expected "
                f"{expected}. Are in_shape and out_shape right, without a batch dimension, and "
                f"batched={self.batched}?"
            )
        if not bool(torch.isfinite(found).all()) and bool(torch.isfinite(x).all()):
            raise ValueError(f"{self.role} makes NaN or infinite values from finite ones.")
        if found.element_size() < 4:  # margins for rounding rest on what the numbers are known to
            raise ValueError(
                f"{self.role} answers in {found.dtype}, which leaves three digits of a norm: let "
                "it compute in float32 or float64."
            )
        return found


def _described(given: Any) -> str:
    kind = "a tensor" if isinstance(given, Tensor) else "a NumPy array"
    return f"{kind} of shape {tuple(given.shape)} and dtype {given.dtype}"


@final
class CallableMap(LinearMap):
    """A linear map by two functions on arrays, the second of which is the transpose's."""

    is_explicit = False

    def __init__(self, forward: ArrayFunction, adjoint: ArrayFunction) -> None:
        self._forward, self._adjoint = forward, adjoint
        self.source, self.target = Layout(forward.source), Layout(forward.target)

    def forward(self, rows: Tensor) -> Tensor:
        return self.target.to_rows(self._forward(self.source.to_tensor(rows)))

    def adjoint(self, rows: Tensor) -> Tensor:
        return self.source.to_rows(self._adjoint(self.target.to_tensor(rows)))
