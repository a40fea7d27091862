"""Algorithm 2 of the paper (Clip) as printed, standing alone, for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, final

import torch

from spectralclip._common import checked_generator, positive_number
from spectralclip._operators import (
    AffineFunction,
    Layer,
    LinearOperator,
    as_operator,
    plain_numerics,
)
from spectralclip._spectrum import PowerQR, leading_spectrum
from spectralclip.methods._domain import check_count, check_positive
from spectralclip.methods._followed import Weights, descend


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
        num_matvecs: Vectors sent through the layer, its transpose or its weight gradient, one
            each.
        rounds: Rounds of the outer loop.
        converged: Whether the last estimate is within the bound. False also where the weights
            ran away; the layer is then as it was, and so is its norm.
    """

    norm_before: float
    norm_after: float
    num_matvecs: int
    rounds: int
    converged: bool


@plain_numerics()
def paper_clip_(
    layer: Layer,
    in_shape: Sequence[int],
    max_norm: float = 1.0,
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
        in_shape: Shape of one input, without the batch dimension.
        max_norm: The bound, c in the paper.
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
        >>> result = methods.paper_clip_(layer, (20,), 0.5, lr=1.0, inner_steps=1)
        >>> result.converged, result.norm_after <= 0.5 < result.norm_before
        (True, True)
    """
    max_norm = positive_number(max_norm, "max_norm")
    check_positive(lr=lr)
    check_count(1, inner_steps=inner_steps)
    check_count(0, rounds=rounds)
    solver = PowerQR(iterations=power_iterations, shift=shift)
    op = as_operator(layer, in_shape)
    function = AffineFunction(layer, in_shape)
    _require_movable(op, function)
    generator = checked_generator(generator)
    top = leading_spectrum(op, 1, solver=solver, generator=generator)
    before = after = float(top.S[0])
    num_matvecs, done = top.num_matvecs, 0
    weights = Weights(op.parameters, op.dtype)
    try:
        while after > max_norm and done < rounds:
            target = max_norm / after * op.matvec(top.V)
            descend(function, weights, top.V, target, lr, inner_steps)
            num_matvecs, done = num_matvecs + 1 + 2 * inner_steps, done + 1
            if not weights.write():
                after = math.nan
                break
            op = as_operator(layer, in_shape)
            top = leading_spectrum(op, 1, solver=solver, generator=generator)
            after, num_matvecs = float(top.S[0]), num_matvecs + top.num_matvecs
    except BaseException:
        weights.restore()
        raise
    if not math.isfinite(after):
        weights.restore()
        after = before
    return PaperClipResult(before, after, num_matvecs, done, after <= max_norm)


def _require_movable(op: LinearOperator, function: AffineFunction) -> None:
    if not op.parameters:
        raise ValueError(f"{op.name} has no parameters to clip: leave it out.")
    if any(isinstance(stage.layer, torch.jit.ScriptModule) for stage in function.stages):
        raise ValueError(
            f"{op.name} is scripted: its parameters cannot be reached for a gradient. Use the "
            "module that it was made from."
        )
