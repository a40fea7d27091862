"""One layer under the paper's Algorithm 3: follow its leading vector, clip now and then."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._training import saved_vectors
from spectralclip.methods._descent import Weights, descend
from spectralclip.methods._live import LiveLayer, Snapshot

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

    def is_due(self, step: int, norm: float, bound: float) -> bool:
        """Whether a norm is to be pulled to the bound after this step."""
        too_small = self.raises and 0 < norm < bound - _RAISED
        return step % self.every == 0 and (norm > bound or too_small)


@final
class FollowedLayer:
    """A layer at one input shape, and its leading right singular vector as far as it is known.

    Attributes:
        norm: The tracked norm; None before the first look, NaN where the weights are not finite.
        applications: Vectors sent through the layer, its transpose or its weight gradient.
    """

    def __init__(self, layer: LiveLayer, schedule: Schedule, origin: str) -> None:
        """Begin without a vector; `origin` is what random ones are drawn from."""
        self._layer, self._schedule, self._origin = layer, schedule, origin
        self._vector: Tensor | None = None
        self._draws = 0
        self.norm: float | None = None
        self.applications = 0

    def after_step(self, step: int, bound: float) -> str:
        """Lines 8 to 11 of Algorithm 3; returns what there is to complain about."""
        try:
            now = self._layer.now()
        except ValueError as error:  # running statistics that make no sense
            return self._lost(str(error))
        # The warm-up goes with the first iteration.
        more = self._schedule.power_iterations if self._vector is None else 0
        if not self._power_qr(now, self._vector, 1 + more):
            return self._lost(
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
        function, vector = self._layer.function, state["vector"]
        if vector is not None:
            vector = saved_vectors(vector, function.in_shape)
            vector = vector.to(function.device, function.dtype, copy=True)
        self._vector, self.norm, self._draws = vector, state["norm"], int(state["draws"])

    def _lost(self, why: str) -> str:
        """Forget the norm, but not the vector; complain once, not at every step."""
        is_news = self.norm is None or not math.isnan(self.norm)
        self.norm = math.nan
        return f"{why} Until then it is not clipped." if is_news else ""

    def _power_qr(self, now: Snapshot, start: Tensor | None, iterations: int) -> bool:
        """Algorithm 1 on one vector, whose QR factors are its direction and its length.

        Returns:
            Whether the outcome is finite. If not, nothing has changed.
        """
        shift = self._schedule.shift
        vector = start = self._fresh_vector() if start is None else start
        for _ in range(iterations):
            image = now.gram(vector).add_(vector, alpha=shift)
            size = torch.linalg.vector_norm(image)
            vector = image.div_(size.clamp_min(torch.finfo(size.dtype).tiny))
        self.applications += 2 * iterations
        length = float(size)
        if not math.isfinite(length):
            return False
        self.norm = math.sqrt(max(length - shift, 0.0))
        self._vector = vector if length > 0 else start
        return True

    def _clip(self, now: Snapshot, norm: float, bound: float) -> str:
        """One round of Algorithm 2 from the tracked pair, lines 5 to 11."""
        vector, function, schedule = self._vector, self._layer.function, self._schedule
        movable = self._layer.trainable()
        if vector is None or not movable:
            return ""
        target = now.image(vector) * (bound / norm)
        weights, values = Weights(movable, function.dtype), self._layer.values()
        descend(function, weights, vector, target, schedule.lr, schedule.inner_steps, values)
        self.applications += 1 + 2 * schedule.inner_steps
        if weights.write():
            found = self._power_qr(self._layer.now(), None, schedule.power_iterations)
            if found and not self._has_grown(max(norm, bound), weights):
                return ""
        weights.restore()
        self._vector, self.norm = vector, norm
        return (
            f"A round with steps of length {schedule.lr:g} has made its norm larger instead of "
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
        missed = float(torch.linalg.vector_norm(self._layer.now().image(self._vector)))
        weights.write()
        self.applications += 1
        return self.norm > _FAILED * missed

    def _fresh_vector(self) -> Tensor:
        """A random vector that depends on the origin alone, and on how many came before.

        So it is the same whichever process takes care of the layer, and after a restart.
        """
        function = self._layer.function
        seed = zlib.crc32(f"{self._origin}, {self._draws}".encode())
        self._draws += 1
        generator = torch.Generator("cpu").manual_seed(seed)
        shape = (1, *function.in_shape)
        vector = torch.randn(shape, generator=generator, dtype=function.dtype, device="cpu")
        return vector.to(function.device)
