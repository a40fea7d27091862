"""Gradient steps that take one singular value of a layer to where it shall be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._operators import AffineFunction, is_plain, unchanged_rng

# Weights that have grown so much do not come back: the step is too long for the layer.
_HOPELESS_GROWTH = 1e6
# Of these `f(0)` is the bias, and depends on nothing else.
_PLAIN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


def descend(
    function: AffineFunction,
    weights: Weights,
    v: Tensor,
    target: Tensor,
    lr: float,
    inner_steps: int,
    others: Mapping[str, Tensor] | None = None,
) -> None:
    """Lines 6 to 9: gradient steps on `1/2 ||M(W') v - target||^2`, on the copy of the weights.

    Args:
        function: The layer.
        weights: What moves.
        v: The leading right singular vector, as a batch of one.
        target: Where `M(W') v` shall go.
        lr: Length of a step.
        inner_steps: How many.
        others: What does not move, by name, where it is not as `function.values` has it.
    """
    for _ in range(inner_steps):
        leaves = {name: value.detach().requires_grad_() for name, value in weights.values.items()}
        with torch.enable_grad(), unchanged_rng(function.device):
            image = _linear_part(function, {**(others or {}), **leaves}, v)
            gradients = torch.autograd.grad(
                (image - target).square().sum() / 2,
                list(leaves.values()),
                materialize_grads=True,
                allow_unused=True,
            )
        weights.step(lr, dict(zip(leaves, gradients, strict=True)))


def _linear_part(function: AffineFunction, values: Mapping[str, Tensor], v: Tensor) -> Tensor:
    """`M(W') v`. Biases cancel in the printed loss, and are left out here."""
    layer: Any = function.stages[0].layer
    if len(function.stages) == 1 and is_plain(layer, *_PLAIN) and not is_parametrized(layer):
        bias = function.stages[0].parameters.get("bias")
        held = {**function.values, **values}
        silenced = {} if bias is None else {bias: torch.zeros_like(held[bias])}
        return function(v, {**held, **silenced})
    # In two calls, on memory of the same order: so the gradients of biases cancel to the last bit.
    offset = function(torch.zeros_like(v), values)
    return (function(function.gain * v, values) - offset) / function.gain


@final
class Weights:
    """Parameters of a layer, with a copy in the precision of the computation, and the originals.

    Steps are taken on the copy: in half precision most would be lost to rounding.
    """

    def __init__(self, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Copy the parameters."""
        self._parameters = dict(parameters)
        self._originals = {
            name: tensor.detach().clone() for name, tensor in self._parameters.items()
        }
        self.values = {name: tensor.to(dtype) for name, tensor in self._originals.items()}
        self._limit = _HOPELESS_GROWTH * max(_largest(t) for t in self._originals.values())
        self._moved: set[str] = set()

    def step(self, lr: float, gradients: Mapping[str, Tensor]) -> None:
        """A gradient step on the copy."""
        for name, gradient in gradients.items():
            if bool(gradient.any()):  # what the linear part does not depend on stays bit for bit
                self._moved.add(name)
                self.values[name] = self.values[name] - lr * gradient

    def write(self) -> bool:
        """Write into the layer, unless the weights have run away."""
        rounded = {name: self.values[name].to(self._originals[name].dtype) for name in self._moved}
        if not all(_largest(tensor) <= self._limit for tensor in rounded.values()):
            return False
        self._copy(rounded)
        return True

    def restore(self) -> None:
        """Put the originals back."""
        self._copy({name: self._originals[name] for name in self._moved})

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._parameters[name].copy_(tensor)


def _largest(tensor: Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0
