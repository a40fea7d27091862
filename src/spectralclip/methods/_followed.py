"""The paper's algorithms on one layer: follow its leading vector, clip by gradient steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._common import Shape
from spectralclip._operators import (
    AffineFunction,
    LinearOperator,
    explicit_maps,
    is_plain,
    unchanged_rng,
)
from spectralclip._training import live_operator, saved_vectors, seeded

# Weights that have grown so much do not come back: the step is too long for the layer.
_HOPELESS_GROWTH = 1e6
# Of these `f(0)` is the bias, and depends on nothing else.
_PLAIN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
# A round that makes a norm so many times as large has failed at what it is for.
_FAILED = 1.1
# Norms that are below the bound by more than this are raised to it, in the published code; it is
# not relative to the bound there, which is always 1.
_RAISED = 0.05


@final
@dataclass(frozen=True)
class Schedule:
    """What is done to a layer, and when; the names are those of `FastClip`."""

    lr: float
    inner_steps: int
    every: int
    power_iterations: int
    shift: float
    raises: bool = False
    averaged: bool = False

    def step_length(self, out_shape: Shape) -> float:
        """Of a gradient step; averaged, the published loss is 2 / width times the printed one."""
        if not self.averaged:
            return self.lr
        return self.lr * (2 / out_shape[-1] if len(out_shape) == 3 else 2)

    def is_due(self, step: int, norm: float, bound: float) -> bool:
        """Whether a norm is to be pulled to the bound after this step."""
        too_small = self.raises and 0 < norm < bound - _RAISED
        return step % self.every == 0 and (norm > bound or too_small)


@final
class FollowedLayer:
    """A layer at one input shape, and its leading right singular vector as far as it is known.

    Attributes:
        norm: The tracked norm; None before the first step, NaN where the weights are not finite.
        num_matvecs: Vectors sent through the layer, its transpose or its weight gradient.
    """

    def __init__(
        self, modules: Sequence[nn.Module], in_shape: Shape, schedule: Schedule, origin: str
    ) -> None:
        """Begin without a vector; `origin` is what random ones are drawn from."""
        self._modules, self._schedule, self._origin = list(modules), schedule, origin
        self.function = AffineFunction(self._modules, in_shape)
        self._lr = schedule.step_length(self.function.out_shape)
        self._vector: Tensor | None = None
        self._draws = 0
        self.norm: float | None = None
        self.num_matvecs = 0

    def after_step(self, step: int, bound: float) -> str:
        """Lines 8 to 11 of Algorithm 3; returns what there is to complain about."""
        try:
            now = self._now()
        except ValueError as error:  # running statistics that make no sense
            return self._non_finite(str(error))
        # The warm-up goes with the first iteration.
        more = self._schedule.power_iterations if self._vector is None else 0
        if not self._power_qr(now, self._vector, 1 + more):
            return self._non_finite(
                "Weights are NaN, infinite, or too large to be squared: restore them."
            )
        if self.norm is not None and self._schedule.is_due(step, self.norm, bound):
            return self._clip(now, self.norm, bound)
        return ""

    def state(self) -> dict[str, Any]:
        """All that is remembered."""
        vector = self._vector
        if vector is not None:
            vector = vector.clone(memory_format=torch.contiguous_format)
        return {"vector": vector, "norm": self.norm, "draws": self._draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what was remembered."""
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

    def _power_qr(
        self, now: LinearOperator | _Evaluated, start: Tensor | None, iterations: int
    ) -> bool:
        """Algorithm 1 on one vector, whose QR factors are its direction and its length.

        Returns:
            Whether the outcome is finite. If not, nothing has changed.
        """
        shift = self._schedule.shift
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

    def _clip(self, now: LinearOperator | _Evaluated, norm: float, bound: float) -> str:
        """One round of Algorithm 2 from the tracked pair, lines 5 to 11."""
        vector, function, schedule = self._vector, self.function, self._schedule
        movable = {name: p for name, p in self._tensors("named_parameters") if p.requires_grad}
        if vector is None or not movable:
            return ""
        target = now.matvec(vector) * (bound / norm)
        weights, values = Weights(movable, function.dtype), self._values()
        descend(function, weights, vector, target, self._lr, schedule.inner_steps, values)
        self.num_matvecs += 1 + 2 * schedule.inner_steps
        if weights.write():
            found = self._power_qr(self._now(), None, schedule.power_iterations)
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
        """Whether the round has made the norm larger, rather than found that it had been.

        Args:
            before: The norm before the round, or the bound where it was to be raised to that.
            weights: The weights that were written.
        """
        if self.norm is None or self._vector is None or self.norm <= _FAILED * before:
            return False
        weights.restore()
        missed = float(torch.linalg.vector_norm(self._now().matvec(self._vector)))
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

    def _now(self) -> LinearOperator | _Evaluated:
        """The layer as it is."""
        if explicit_maps(self.function) is None:
            return _Evaluated(self.function, self._values())
        return live_operator(self.function)

    def _values(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, detached, in the dtype of the computation."""
        dtype, found = self.function.dtype, {}
        for kind in ("named_parameters", "named_buffers"):
            for name, tensor in self._tensors(kind):
                own = dtype if tensor.is_floating_point() else tensor.dtype
                # Buffers are copied, since a forward pass may write into them.
                found[name] = tensor.detach().to(own, copy=kind == "named_buffers")
        return found

    def _tensors(self, kind: str) -> Iterator[tuple[str, Tensor]]:
        """Read from the modules, where tensors may have been replaced since."""
        for stage in self.function.stages:
            if isinstance(stage.layer, nn.Module):
                for own, tensor in getattr(stage.layer, kind)(remove_duplicate=False):
                    yield stage.parameters[own], tensor


@final
class _Evaluated:
    """Any layer through its own forward and backward, as the paper has it, at some values."""

    def __init__(self, function: AffineFunction, values: dict[str, Tensor]) -> None:
        self._function, self._values = function, values
        with torch.no_grad(), unchanged_rng(function.device):
            self._at_zero = function(function.zeros(1), values)

    def matvec(self, x: Tensor) -> Tensor:
        with torch.no_grad(), unchanged_rng(self._function.device):
            return self._linear_part(self._function(self._function.gain * x, self._values))

    def gram(self, x: Tensor) -> Tensor:
        with torch.enable_grad(), unchanged_rng(self._function.device):
            leaf = (self._function.gain * x).requires_grad_()
            y = self._function(leaf.clone(), self._values)  # a layer may work in place
            if not y.requires_grad:  # A constant function: no path leads back to x.
                return torch.zeros_like(x)
            image = self._linear_part(y.detach())
            (gram,) = torch.autograd.grad(y, leaf, image, materialize_grads=True)
        return gram

    def _linear_part(self, y: Tensor) -> Tensor:
        return (y - self._at_zero) / self._function.gain


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
