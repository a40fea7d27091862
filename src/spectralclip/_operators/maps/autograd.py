"""Any affine layer as a map, through its own forward and backward."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import pulled_back
from spectralclip._operators.affine import AffineFunction
from spectralclip._operators.contexts import unchanged_rng
from spectralclip._operators.maps.base import Adjoint, Layout, LinearMap, adjoint_gap


@final
class AutogradMap(LinearMap):
    """Some stages of an affine function, through their own forward and backward."""

    is_explicit = False

    def __init__(self, function: AffineFunction, start: int, stop: int) -> None:
        self._function, self._stages = function, slice(start, stop)
        self._gain = function.gain
        self.source = Layout(function.shapes[start])
        self.target = Layout(function.shapes[stop])
        zero = torch.zeros(1, *self.source.shape, dtype=function.dtype, device=function.device)
        with torch.no_grad():
            at_zero = self._evaluate(zero)
        self._at_zero = at_zero if bool(at_zero.any()) else None
        self._graph: tuple[Tensor, Tensor] | None = None
        if not function.is_checked:
            self._require_adjoint()

    def _require_adjoint(self) -> None:
        """Raise unless the backward pass is the transpose of the forward pass."""
        function, generator = self._function, torch.Generator("cpu").manual_seed(1)
        sizes = self.source.size, self.target.size
        drawn = [torch.randn(1, size, generator=generator, device="cpu") for size in sizes]
        x, y = (row.to(function.device, function.dtype) for row in drawn)
        image, adjoint = self.linearize(x)
        *_, gap = adjoint_gap(x, y, image, adjoint(y))
        if gap > 1e-3:
            raise ValueError(
                f"The backward pass of {function.name} is not the transpose of its forward pass: "
                "it is cut off or changed somewhere, as by torch.no_grad() or .detach() inside. "
                "Let gradients reach the input."
            )

    def _evaluate(self, x: Tensor) -> Tensor:
        with unchanged_rng(self._function.device):
            return self._function(x, stages=self._stages)

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.source.to_tensor(rows) * self._gain  # new memory: a layer may work in place
            return self._linear_part(self._evaluate(x))

    def adjoint(self, rows: Tensor) -> Tensor:
        # A linear map's backward does not depend on where it was taken: one graph serves all
        # calls with the same number of rows.
        if self._graph is None or self._graph[0].shape[0] != rows.shape[0]:
            zeros = torch.zeros_like(rows[:, :1]).expand(-1, self.source.size)
            self._graph = self._record(zeros)
        x, y = self._graph
        return self._backward(x, y, rows, keep=True)

    def linearize(self, rows: Tensor) -> tuple[Tensor, Adjoint]:
        x, y = self._record(rows if self._gain == 1 else rows * self._gain)
        return self._linear_part(y.detach()), lambda rows: self._backward(x, y, rows, keep=False)

    def _linear_part(self, y: Tensor) -> Tensor:
        # A pass over a wide batch takes a good part of the time of the layer itself.
        y = y if self._at_zero is None else y - self._at_zero
        return self.target.to_rows(y if self._gain == 1 else y / self._gain)

    def _record(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = self.source.to_tensor(rows).detach().requires_grad_()
            return x, self._evaluate(x.clone())  # a layer may work in place

    def _backward(self, x: Tensor, y: Tensor, rows: Tensor, keep: bool) -> Tensor:
        if not y.requires_grad:  # A constant function: no path leads back to x.
            return self.source.to_rows(torch.zeros_like(x))
        (gradient,) = pulled_back(y, [x], self.target.to_tensor(rows), retain=keep)
        return self.source.to_rows(gradient)
