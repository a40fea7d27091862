"""Any affine layer, held within its bound through full singular vectors.

What Fourier modes do for zero and circular padding, these do for all other layers: reflected and
replicated borders amplify what stays near them, and a layer of one's own may do anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._clipping import GenericWeights, moving_names
from spectralclip._common import Shape
from spectralclip._operators import AffineFunction, LinearOperator
from spectralclip._spectrum import RitzTracker, Triplets, random_rows
from spectralclip._training.engine.constrained_layer import ConstrainedLayer
from spectralclip._training.engine.cut_step import (
    DenseCuts,
    MomentumProjection,
    project_,
    project_momentum_,
)
from spectralclip._training.engine.norm_check import GrowthMonitor, Target
from spectralclip._training.engine.tuning import LAYER, VECTORS
from spectralclip._training.live import NonFiniteLayer, live_operator
from spectralclip._training.state import saved_vectors


@final
class VectorProjector:
    """One layer at one input shape."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        layer: ConstrainedLayer | None,
        in_shape: Shape,
        project_momentum: MomentumProjection,
        generator: torch.Generator,
    ) -> None:
        self._modules, self._layer = list(modules), layer
        self._project_momentum = project_momentum
        smaller = _reduced(layer, in_shape)
        self._function = AffineFunction(self._modules, smaller)
        self.share = math.prod(smaller) / math.prod(in_shape)
        self._generator = generator
        self.tracker = RitzTracker(VECTORS.width)
        self.norm, self.num_matvecs = math.nan, 0
        self.monitor = GrowthMonitor()

    def state(self) -> dict[str, Any]:
        return {
            "vectors": self.tracker.vectors,
            "changes": self.tracker.changes,
            "norm": self.norm,
            "growth": self.monitor.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        here = {"device": self._function.device, "dtype": self._function.dtype}
        if state["vectors"] is not None:
            saved_vectors(state["vectors"], (math.prod(self._function.in_shape),))
        vectors, changes = (
            None if state[key] is None else state[key].to(**here, copy=True)
            for key in ("vectors", "changes")
        )
        self.tracker = RitzTracker(VECTORS.width if vectors is None else len(vectors))
        self.tracker.vectors, self.tracker.changes = vectors, changes
        self.monitor.load_state(state["growth"])
        self.norm = float(state["norm"])

    @torch.no_grad()
    def step(self, target: Target) -> bool:
        """Refresh, and clip what is above; whether the weights are finite."""
        try:
            return self._step(target)
        except (NonFiniteLayer, OverflowError):
            return False

    def _step(self, target: Target) -> bool:
        self._tame(target.bound)
        refreshes, bound = 1, self.monitor.lowered(target)
        if self.tracker.vectors is None:
            op = self._operator()
            width = min(VECTORS.width, *op.shape)
            self.tracker = RitzTracker(width)
            self.tracker.start(random_rows(op, width, self._generator))
            refreshes += VECTORS.warm_up
        for left in reversed(range(VECTORS.rounds)):
            op = self._operator()
            for _ in range(refreshes):
                seen = self.tracker.refresh(op)
                self.num_matvecs += seen.num_matvecs
                if not bool(torch.isfinite(seen.S).all()):
                    return False
                self.tracker.keep()
            refreshes = 1
            top = float(seen.S[0])
            self.norm = min(top, bound)
            if left == VECTORS.rounds - 1:
                self.monitor.note(top, self.norm)
            if top > bound and not left:
                self.shrink(bound / top)
            elif top > bound:
                self._clip(op, seen, bound, first=left == VECTORS.rounds - 1)
            if top <= VECTORS.almost * bound:
                break
        return True

    def _tame(self, bound: float) -> None:
        """Scale down what is so large that it cannot be projected, or not even squared."""
        if self._layer is not None:
            self._layer.tame_(bound)
            return
        op = self._operator()
        vectors = self.tracker.vectors
        if vectors is None:
            vectors = random_rows(op, 1, self._generator)
        peak = float(op.forward_rows(vectors[:1] / vectors[:1].norm()).abs().amax())
        if LAYER.spike * bound < peak < math.inf:
            self.shrink(bound / peak)

    def _operator(self) -> LinearOperator:
        return live_operator(self._function)

    @cached_property
    def _names(self) -> list[str]:
        """The parameters that move, where the layer has no plainer form."""
        return moving_names(self._operator(), "first", in_training=True)

    def _clip(self, op: LinearOperator, seen: Triplets, bound: float, *, first: bool) -> None:
        near = VECTORS.near * bound < seen.S
        parameters, rows = self._gradients(op, seen, near)
        moved = torch.cat([p.detach().flatten() for p in parameters]).to(rows.dtype)
        excess = (seen.S[near] - bound).cpu().double().numpy()
        active = project_(moved, DenseCuts(rows), excess) if len(rows) else None
        if active is None:
            return
        sizes = [p.numel() for p in parameters]
        for parameter, part in zip(parameters, moved.split(sizes), strict=True):
            parameter.copy_(part.reshape(parameter.shape))
        if first:
            for parameter, part in zip(parameters, active.rows().split(sizes, 1), strict=True):
                project = partial(project_momentum_, cuts=DenseCuts(part))
                self._project_momentum(parameter, project)

    def _gradients(
        self, op: LinearOperator, seen: Triplets, near: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The parameters that move, and the gradients of the values in them, as flat rows."""
        U, V, S = seen.U[near], seen.V[near], seen.S[near]
        layer = self._layer
        if layer is not None and layer.gamma is not None:
            gamma = layer.gamma
            channels = op.maps[-1].target.to_tensor(U).square().flatten(2).sum(2)
            shares = channels * S.to(channels)[:, None]
            factor = gamma.detach().to(shares.dtype)
            return [gamma], torch.where(factor == 0, 0, shares / factor)
        if layer is not None and layer.norm is None and len(op.maps) == 1:
            map_ = op.maps[0]
            if map_.convolution is not None and not len(S):
                return [layer.weight], U.new_zeros(0, layer.weight.numel())
            if map_.convolution is not None:
                return [layer.weight], map_.weight_gradients(U, V).flatten(1)
        names = self._names
        rows = []
        outputs, inputs = op.output_tensor(U), op.input_tensor(V)
        for u, v in zip(outputs, inputs, strict=True):
            gradient = op.pullback(u, v)
            rows.append(torch.cat([gradient[name].flatten() for name in names]))
        width = sum(op.function.parameters[name].numel() for name in names)
        found = torch.stack(rows) if rows else U.new_zeros(0, width)
        return [op.function.parameters[name] for name in names], found

    @torch.no_grad()
    def shrink(self, factor: float) -> None:
        """Scale the layer, in the parameters that move."""
        self.norm *= factor
        self.monitor.norm *= factor
        if self._layer is not None:
            self._layer.moving.mul_(factor)
            return
        op = self._operator()
        movable = GenericWeights(op.function, self._names, 1.0)
        for name, value in movable.parameters(movable.scaled(movable.start, factor)).items():
            op.function.parameters[name].copy_(value)


def _reduced(layer: ConstrainedLayer | None, in_shape: Shape) -> Shape:
    """A smaller image on which a convolution has nearly the same norm."""
    if layer is None or isinstance(layer.module, nn.Linear):
        return in_shape
    module: Any = layer.module
    sides = []
    for size, kernel, stride, dilation in zip(
        in_shape[1:], module.kernel_size, module.stride, module.dilation, strict=True
    ):
        reach = dilation * (kernel - 1) + 1
        enough = max(VECTORS.windows * stride, 4 * reach)
        # The border at the far end has to fall on the same pixel of a window.
        sides.append(size if size <= enough else enough + (size - enough) % stride)
    return (in_shape[0], *sides)
