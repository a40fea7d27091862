"""A layer in training: `M` with the weights and statistics that it has at the moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._common import Shape
from spectralclip._linalg import pulled_back
from spectralclip._operators import (
    AffineFunction,
    LinearMap,
    LinearOperator,
    explicit_maps,
    is_plain,
    merge,
    unchanged_rng,
)

_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Snapshot(Protocol):
    """`M` on batches `(k, *in_shape)`, until the weights change again."""

    def image(self, x: Tensor) -> Tensor:
        """`M x`."""

    def gram(self, x: Tensor) -> Tensor:
        """`M^T M x`, which the caller may write into."""


@final
class LiveLayer:
    """A layer that others keep changing.

    What does not change is checked and computed once, here; a snapshot then costs next to
    nothing for dense layers, convolutions and batch norms, and an evaluation at zero for any
    other layer.

    Attributes:
        function: The layer as an affine function. Its `values` are those of the beginning.
    """

    def __init__(self, modules: Sequence[nn.Module], in_shape: Shape) -> None:
        self.function = AffineFunction(list(modules), in_shape)
        maps = explicit_maps(self.function) if len(modules) == 1 else None
        # With one weight of its own, a layer differs from what it was by that weight alone.
        self._template = maps[0] if maps and self._has_plain_weight() else None

    def now(self) -> Snapshot:
        """The layer as it is.

        Raises:
            ValueError: A running variance is not positive.
        """
        if self._template is not None and self._has_plain_weight():
            weight = self._first.weight.detach().to(self.function.dtype)
            return self._explicit([self._template.with_weight(weight)])
        maps = explicit_maps(self.function)
        if maps is None:
            return _Evaluated(self.function, self.values())
        return self._explicit(merge(maps))

    @property
    def _first(self) -> Any:
        return self.function.stages[0].layer

    def _has_plain_weight(self) -> bool:
        return is_plain(self._first, *_PLAIN) and not is_parametrized(self._first)

    def _explicit(self, maps: Sequence[LinearMap]) -> Snapshot:
        return _Explicit(LinearOperator(self.function, maps, transposed=False))

    def values(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, detached, in the dtype of the computation."""
        found = {}
        for kind, name, tensor in self._tensors():
            dtype = self.function.dtype if tensor.is_floating_point() else tensor.dtype
            # Buffers are copied, since a forward pass may write into them.
            found[name] = tensor.detach().to(dtype, copy=kind == "buffer")
        return found

    def trainable(self) -> dict[str, Tensor]:
        """The layer's own parameters that are not frozen, by name."""
        return {
            name: tensor
            for kind, name, tensor in self._tensors()
            if kind == "parameter" and tensor.requires_grad
        }

    def _tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Read from the modules, where tensors may have been replaced since."""
        for stage in self.function.stages:
            if isinstance(stage.layer, nn.Module):
                for own, parameter in stage.layer.named_parameters(remove_duplicate=False):
                    yield "parameter", stage.parameters[own], parameter
                for own, buffer in stage.layer.named_buffers(remove_duplicate=False):
                    yield "buffer", stage.parameters[own], buffer


@final
class _Explicit:
    """Plain layers, in the layout that they like: nothing is copied on the way."""

    def __init__(self, op: LinearOperator) -> None:
        self._op = op

    def image(self, x: Tensor) -> Tensor:
        rows = self._op.forward_rows(self._op.input_rows(x))
        return self._op.maps[-1].target.to_tensor(rows)

    def gram(self, x: Tensor) -> Tensor:
        rows = self._op.gram_rows(self._op.input_rows(x))
        return self._op.maps[0].source.to_tensor(rows)


@final
class _Evaluated:
    """Any layer, through its own forward and backward, as the paper has it."""

    def __init__(self, function: AffineFunction, values: dict[str, Tensor]) -> None:
        self._function, self._values = function, values
        with torch.no_grad(), unchanged_rng(function.device):
            self._at_zero = function(function.zeros(1), values)

    def image(self, x: Tensor) -> Tensor:
        with torch.no_grad(), unchanged_rng(self._function.device):
            return self._linear_part(self._function(self._function.gain * x, self._values))

    def gram(self, x: Tensor) -> Tensor:
        with torch.enable_grad(), unchanged_rng(self._function.device):
            leaf = (self._function.gain * x).requires_grad_()
            y = self._function(leaf.clone(), self._values)  # a layer may work in place
            if not y.requires_grad:  # A constant function: no path leads back to x.
                return torch.zeros_like(x)
            image = self._linear_part(y.detach())
            (gram,) = pulled_back(y, [leaf], image, retain=False)
        return gram

    def _linear_part(self, y: Tensor) -> Tensor:
        return (y - self._at_zero) / self._function.gain
