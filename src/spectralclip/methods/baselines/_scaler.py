"""Dividing weights by what the power method finds their layer's norm to be above a bound."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._clipping import clamp_batch_norm_
from spectralclip._models import FoundLayer
from spectralclip._training import MethodState, saved_vectors, warn
from spectralclip.methods._domain import is_batch_norm
from spectralclip.methods._live import LiveLayer
from spectralclip.methods.baselines._power import power_method


@final
class _Measured:
    """A layer at one input shape, and where the power method on it begins.

    Attributes:
        vector: The vector of the step before, if the start is to be warm.
        applications: Vectors sent through the layer or its transpose.
    """

    def __init__(self, layer: LiveLayer, origin: str, warm: bool) -> None:
        """Begin at a random vector that depends on `origin` alone."""
        self._layer, self._origin, self._warm = layer, origin, warm
        self.vector: Tensor | None = None
        self.applications = 0

    def norm(self, iterations: int) -> float:
        """The norm of the layer as it is now; not finite where its weights are not."""
        now = self._layer.now()
        start = self._first() if self.vector is None else self.vector
        x, done, _ = power_method(now.gram, start, iterations)
        norm = float(torch.linalg.vector_norm(now.image(x)))
        self.applications += 2 * done + 1
        if self._warm and 0 < norm < math.inf:
            self.vector = x
        return norm

    def load(self, vector: Tensor | None) -> None:
        """Go on from a vector that was saved."""
        function = self._layer.function
        if vector is not None:
            vector = saved_vectors(vector, function.in_shape)
            vector = vector.to(function.device, function.dtype, copy=True)
        self.vector = vector

    def _first(self) -> Tensor:
        function = self._layer.function
        generator = torch.Generator("cpu").manual_seed(zlib.crc32(self._origin.encode()))
        shape = (1, *function.in_shape)
        start = torch.randn(shape, generator=generator, dtype=function.dtype, device="cpu")
        return start.to(function.device)


@final
class Scaler(MethodState):
    """Divides the weight of each layer by what its norm is above the bound, after each step.

    Batch norms among the layers are clamped.
    """

    def __init__(
        self,
        method: str,
        layers: Mapping[str, FoundLayer],
        iterations: int,
        *,
        warm: bool,
        seed: int,
    ) -> None:
        self._method, self._iterations = method, iterations
        self._layers: dict[str, Any] = {name: found.modules[0] for name, found in layers.items()}
        self._measured = {
            name: [
                _Measured(LiveLayer(found.modules, shape), f"{seed}, {name}, {index}", warm)
                for index, shape in enumerate(found.in_shapes)
            ]
            for name, found in layers.items()
            if not is_batch_norm(found)
        }
        self._norms: dict[str, float] = {}

    @property
    def applications(self) -> int:
        """Vectors sent through layers or their transposes so far."""
        return sum(each.applications for layer in self._measured.values() for each in layer)

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            if name in self._measured:
                norm = self._scale(name, bound)
            else:
                norm = clamp_batch_norm_(self._layers[name], bound)
            if not math.isfinite(norm) and math.isfinite(self._norms.get(name, 0.0)):
                warn(
                    f"{self._method} on layer {name!r}: weights or statistics are NaN, infinite, "
                    "or too large to be squared. It is left as it is until they are restored."
                )
            self._norms[name] = norm

    @torch.no_grad()
    def _scale(self, name: str, bound: float) -> float:
        """`W /= max(1, sigma / bound)`; the estimated norm after that."""
        norms = [each.norm(self._iterations) for each in self._measured[name]]
        if not all(map(math.isfinite, norms)):
            return math.nan
        norm = max(norms)
        if norm > bound:
            self._layers[name].weight.mul_(bound / norm)
        return min(norm, bound)

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def layer_states(self) -> dict[str, Any]:
        return {
            name: [None if each.vector is None else each.vector.clone() for each in layer]
            for name, layer in self._measured.items()
        }

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        known = {name: states[name] for name in self._measured if name in states}
        for name, saved in known.items():
            if len(saved) != len(self._measured[name]):
                raise ValueError(
                    f"The state of layer {name!r} is for {len(saved)} input shapes, expected "
                    f"{len(self._measured[name])}. Attach with the same example inputs."
                )
        for name, saved in known.items():
            for each, vector in zip(self._measured[name], saved, strict=True):
                each.load(vector)
