"""The paper's algorithms on one layer: follow its leading vector, clip by gradient steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._common import Shape
from spectralclip._linalg import gradients_in
from spectralclip._operators import (
    AffineFunction,
    LinearOperator,
    is_plain,
    operator_at,
    unchanged_rng,
)
from spectralclip._training import saved_vectors, seeded
from spectralclip.methods._domain import WEIGHTED

if TYPE_CHECKING:
    from spectralclip.methods.fast_clip import FastClip

# Weights that have grown so much do not come back: the step is too long for the layer.
_HOPELESS_GROWTH = 1e6
# A round that makes a norm so many times as large has failed at what it is for.
_FAILED = 1.1
# Norms that are below the bound by more than this are raised to it, in the published code; it is
# not relative to the bound there, which is always 1.
_RAISED = 0.05


@final
class FollowedLayer:
    """A layer at one input shape, and its leading right singular vector as far as it is known."""

    def __init__(
        self, modules: Sequence[nn.Module], in_shape: Shape, method: FastClip, origin: str
    ) -> None:
        """Begin without a vector; `origin` is what random ones are drawn from."""
        self._method, self._origin, self._lr = method, origin, method.lr
        self.function = AffineFunction(modules, in_shape)
        if method.averaged:  # the published loss is 2 / width times the printed one
            shape = self.function.out_shape
            self._lr *= 2 / shape[-1] if len(shape) == 3 else 2
        self._vector: Tensor | None = None
        self._draws = 0
        self.norm: float | None = None  # before the first step; NaN while weights are not finite
        self.num_matvecs = 0

    def after_step(self, step: int, bound: float) -> str:
        """Lines 8 to 11 of Algorithm 3; returns what there is to complain about."""
        try:
            now = operator_at(self.function)
        except ValueError as error:  # running statistics that make no sense
            return self._non_finite(str(error))
        # The warm-up goes with the first iteration.
        more = self._method.power_iterations if self._vector is None else 0
        if not self._power_qr(now, self._vector, 1 + more):
            return self._non_finite(
                "Weights are NaN, infinite, or too large to be squared: restore them."
            )
        if self.norm is None or step % self._method.every:
            return ""
        too_small = self._method.raises and 0 < self.norm < bound - _RAISED
        return self._clip(now, self.norm, bound) if self.norm > bound or too_small else ""

    def state(self) -> dict[str, Any]:
        vector = None if self._vector is None else self._vector.clone()
        return {"vector": vector, "norm": self.norm, "draws": self._draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        function, vector = self.function, state["vector"]
        if vector is not None:
            vector = saved_vectors(vector, function.in_shape)
            vector = vector.to(function.device, function.dtype, copy=True)
        self._vector, self.norm, self._draws = vector, state["norm"], int(state["draws"])

    def _non_finite(self, why: str) -> str:
        """Forget the norm, but not the vector; complain once, not at every step."""
        is_news = self.norm is None or not math.isnan(self.norm)
        self.norm = math.nan
        return f"{why} Until then it is not clipped." if is_news else ""

    def _power_qr(self, now: LinearOperator, start: Tensor | None, iterations: int) -> bool:
        """Algorithm 1 on one vector; whether the outcome is finite. If not, nothing has changed."""
        shift = self._method.shift
        vector = start = self._fresh_vector() if start is None else start
        for _ in range(iterations):
            image = torch.add(now.gram(vector), vector, alpha=shift)
            size = torch.linalg.vector_norm(image)
            vector = image.div_(size.clamp_min(torch.finfo(size.dtype).tiny))
        self.num_matvecs += 2 * iterations
        length = float(size)
        if not math.isfinite(length):
            return False
        self.norm = math.sqrt(max(length - shift, 0.0))
        self._vector = vector if length > 0 else start
        return True

    def _clip(self, now: LinearOperator, norm: float, bound: float) -> str:
        """One round of Algorithm 2 from the tracked pair, lines 5 to 11."""
        vector, method = self._vector, self._method
        movable = {name: own for name, own in now.parameters.items() if own.requires_grad}
        if vector is None or not movable:
            return ""
        target = now.matvec(vector) * (bound / norm)
        weights = Weights(movable, now.dtype)
        descend(now.function, weights, vector, target, self._lr, method.inner_steps)
        self.num_matvecs += 1 + 2 * method.inner_steps
        if weights.write():
            found = self._power_qr(operator_at(self.function), None, method.power_iterations)
            if found and not self._has_grown(max(norm, bound), weights):
                return ""
        weights.restore()
        self._vector, self.norm = vector, norm
        return (
            f"A round with steps of length {self._lr:g} has made its norm larger instead of "
            f"{'smaller' if norm > bound else 'pulling it up to the bound'}, and was undone: take "
            "shorter ones."
        )

    def _has_grown(self, before: float, weights: Weights) -> bool:
        """Whether the round has made the norm larger, rather than found that it had been."""
        if self.norm is None or self._vector is None or self.norm <= _FAILED * before:
            return False
        weights.restore()
        now = operator_at(self.function)
        missed = float(torch.linalg.vector_norm(now.matvec(self._vector)))
        weights.write()
        self.num_matvecs += 1
        return self.norm > _FAILED * missed

    def _fresh_vector(self) -> Tensor:
        """A random vector that depends on the origin alone, and on how many came before."""
        function, generator = self.function, seeded(f"{self._origin}, {self._draws}")
        self._draws += 1
        shape = (1, *function.in_shape)
        vector = torch.randn(shape, generator=generator, dtype=function.dtype, device="cpu")
        return vector.to(function.device)


def descend(
    function: AffineFunction, weights: Weights, v: Tensor, target: Tensor, lr: float, steps: int
) -> None:
    """Lines 6 to 9: gradient steps on `1/2 ||M(W') v - target||^2`, on the copy of the weights."""
    for _ in range(steps):
        leaves = {name: value.detach().requires_grad_() for name, value in weights.values.items()}
        with torch.enable_grad(), unchanged_rng(function.device):
            distance = (_linear_part(function, leaves, v) - target).square().sum() / 2
        weights.step(lr, gradients_in(distance, leaves))


def _linear_part(function: AffineFunction, values: Mapping[str, Tensor], v: Tensor) -> Tensor:
    """`M(W') v`. Biases cancel, their gradients to the last bit; of plain layers they are zero."""
    stage = function.stages[0]
    layer: Any = stage.layer
    if len(function.stages) > 1 or not is_plain(layer, *WEIGHTED) or is_parametrized(layer):
        return function.linear_part(v, values)
    bias = stage.parameters.get("bias")
    silenced = {} if bias is None else {bias: torch.zeros_like(function.values[bias])}
    return function(v, {**values, **silenced})


@final
class Weights:
    """Parameters of a layer, with a copy in the precision of the computation, and the originals.

    Steps are taken on the copy: in half precision most would be lost to rounding.
    """

    def __init__(self, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._parameters = dict(parameters)
        self._originals = {
            name: tensor.detach().clone() for name, tensor in self._parameters.items()
        }
        self.values = {name: tensor.to(dtype) for name, tensor in self._originals.items()}
        self._limit = _HOPELESS_GROWTH * max(_largest(t) for t in self._originals.values())
        self._moved: set[str] = set()

    def step(self, lr: float, gradients: Mapping[str, Tensor]) -> None:
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
        self._copy({name: self._originals[name] for name in self._moved})

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._parameters[name].copy_(tensor)


def _largest(tensor: Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0
