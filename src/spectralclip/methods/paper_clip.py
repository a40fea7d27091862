"""Algorithm 2 of the paper (Clip) as printed, standing alone, for comparison."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._affine import AffineFunction, Layer, plain_numerics, unchanged_rng
from spectralclip._explicit import is_plain
from spectralclip._operator import LinearOperator, as_operator
from spectralclip._solvers import PowerQR
from spectralclip._svds import svds

# Weights that have grown so much do not come back: the step is too long for the layer.
_HOPELESS_GROWTH = 1e6
# Of these `f(0)` is the bias, and depends on nothing else.
_PLAIN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


class PaperClipSettings(TypedDict):
    """Settings that can be handed over as `paper_clip_(..., **settings)`."""

    lr: float
    inner_steps: int
    power_iterations: int


PUBLISHED: Final[PaperClipSettings] = {"lr": 0.35, "inner_steps": 5, "power_iterations": 10}
"""The constants of the paper's experiments on networks with batch norm.

There each call took one round, every 50 steps of training. The published code averages its loss
over the width of the image, which the printed algorithm does not: on an image of width w its step
is shorter by a factor of about w.
"""

PUBLISHED_WITHOUT_BATCH_NORM: Final[PaperClipSettings] = {**PUBLISHED, "inner_steps": 1}
"""The same for networks without batch norm, where a call came every 100 steps."""


@final
@dataclass(frozen=True)
class PaperClipResult:
    """What the algorithm did, by its own account.

    Attributes:
        norm_before: The first estimate of the norm.
        norm_after: The last one. Both come from a fixed number of power iterations, and are
            usually too small: `spectral_norm` tells what was reached.
        applications: Vectors sent through the layer, its transpose or its weight gradient, one
            each.
        rounds: Rounds of the outer loop.
        converged: Whether the last estimate is within the bound. False also where the weights
            ran away; the layer is then as it was, and so is its norm.
    """

    norm_before: float
    norm_after: float
    applications: int
    rounds: int
    converged: bool


@plain_numerics()
def paper_clip_(
    layer: Layer,
    max_norm: float,
    in_shape: Sequence[int],
    *,
    lr: float = 0.35,
    inner_steps: int = 5,
    power_iterations: int = 10,
    rounds: int = 100,
    shift: float = 1.0,
    generator: torch.Generator | None = None,
) -> PaperClipResult:
    """Clip a layer's norm by the paper's Algorithm 2, in place.

    Each round takes the leading right singular vector v and value s from a few power iterations
    on a fresh random vector, and does gradient steps on `1/2 ||M(W') v - (c / s) M(W) v||^2`. For
    a dense layer a step of `lr = 1` replaces `s u v^T` by `c u v^T`, exactly.

    It is here to be compared with, and fails in two ways. In a convolution a weight acts at many
    positions, so that the gradient of a single singular value is up to as many times too long:
    with `lr = 1` the weights of most convolutions run away, and a shorter step that is stable for
    one layer and image size is too slow for another. And the loop stops at an estimate that is
    too small: after few power iterations it leaves norms of 1.05 to 1.6 `max_norm`.

    Args:
        layer: A module, or a sequence of modules (their composition). All parameters on which
            the linear part depends move; biases do not.
        max_norm: The bound, c in the paper.
        in_shape: Shape of one input, without the batch dimension.
        lr: Length of a gradient step, lambda in the paper.
        inner_steps: Gradient steps in each round, N in the paper.
        power_iterations: Iterations of PowerQR in each round, P in the paper.
        rounds: At most so many rounds of the outer loop. The paper has no limit.
        shift: The shift of PowerQR, mu in the paper.
        generator: Source of the random vectors; by default the same for each call.

    Returns:
        A `PaperClipResult`; the norms in it are the algorithm's own estimates. Where the
        weights run away, the layer is left as it was.

    Raises:
        ValueError: The arguments do not fit the layer; nothing has been changed.

    Example:
        >>> import torch
        >>> from spectralclip import methods
        >>> layer = torch.nn.Linear(20, 10)
        >>> result = methods.paper_clip_(layer, 0.5, (20,), lr=1.0, inner_steps=1)
        >>> result.converged, result.norm_after <= 0.5 < result.norm_before
        (True, True)
    """
    check_positive(max_norm=max_norm, lr=lr)
    check_count(1, inner_steps=inner_steps)
    check_count(0, rounds=rounds)
    solver = PowerQR(iterations=power_iterations, shift=shift)
    op = as_operator(layer, in_shape)
    function = AffineFunction(layer, in_shape)
    _require_movable(op, function)
    if generator is None:
        generator = torch.Generator("cpu").manual_seed(0)
    top = svds(op, in_shape, 1, solver=solver, generator=generator)
    before = after = float(top.S[0])
    applications, done = top.applications, 0
    weights = Weights(op.parameters, op.dtype)
    try:
        while after > max_norm and done < rounds:
            target = max_norm / after * op.matvec(top.V)
            descend(function, weights, top.V, target, lr, inner_steps)
            applications, done = applications + 1 + 2 * inner_steps, done + 1
            if not weights.write():
                after = math.nan
                break
            op = as_operator(layer, in_shape)
            top = svds(op, in_shape, 1, solver=solver, generator=generator)
            after, applications = float(top.S[0]), applications + top.applications
    except BaseException:
        weights.restore()
        raise
    if not math.isfinite(after):
        weights.restore()
        after = before
    return PaperClipResult(before, after, applications, done, after <= max_norm)


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


def check_positive(**settings: float) -> None:
    """Raise unless each setting is a positive finite number."""
    for name, number in settings.items():
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not real or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a positive finite number, got {number!r}.")


def check_count(least: int, **settings: int) -> None:
    """Raise unless each setting is an integer that is large enough."""
    for name, count in settings.items():
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name} must be an integer, got {count!r}.")
        if operator.index(count) < least:
            raise ValueError(f"{name} must be at least {least}, got {count}.")


def _require_movable(op: LinearOperator, function: AffineFunction) -> None:
    if not op.parameters:
        raise ValueError(f"{op.name} has no parameters to clip: leave it out.")
    if any(isinstance(stage.layer, torch.jit.ScriptModule) for stage in function.stages):
        raise ValueError(
            f"{op.name} is scripted: its parameters cannot be reached for a gradient. Use the "
            "module that it was made from."
        )
