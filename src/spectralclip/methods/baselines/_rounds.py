"""Kernels that are clipped on a torus every so many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from spectralclip._models import FoundLayer
from spectralclip._training import MethodState, warn
from spectralclip.methods.baselines._circulant import Torus, is_finite, kernel_of

Clip: TypeAlias = Callable[[Tensor, Torus, float], Tensor]
"""From a kernel, its torus and a bound to a kernel: the same object if it stays as it is."""


@final
class Rounds(MethodState):
    """Clips all layers of a model every so many steps, and does nothing in between."""

    def __init__(
        self, method: str, layers: Mapping[str, FoundLayer], every: int, clip: Clip
    ) -> None:
        self._method, self._layers, self._every, self._clip = method, dict(layers), every, clip
        self._norms: dict[str, float] = {}

    @torch.no_grad()
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items() if step % self._every == 0 else ():
            was_lost = math.isnan(self._norms.get(name, 0.0))
            self._norms[name] = self._round(self._layers[name], bound)
            if math.isnan(self._norms[name]) and not was_lost:
                warn(
                    f"{self._method} on layer {name!r}: its weights are NaN, infinite or too "
                    "large. It is not clipped until they are restored, as by loading a checkpoint."
                )

    def _round(self, layer: FoundLayer, bound: float) -> float:
        """Clip at each of the shapes in turn; returns the largest norm that is left."""
        module = layer.modules[0]
        kernel = before = kernel_of(module)
        if not is_finite(kernel):
            return math.nan
        tori = [Torus.of(module, shape) for shape in layer.in_shapes]
        for torus in tori:
            kernel = self._clip(kernel, torus, bound)
        if kernel is not before:
            weight = module._parameters["weight"]
            assert weight is not None
            weight.copy_(kernel)
        return max(torus.norm(kernel) for torus in tori)

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def layer_states(self) -> dict[str, Any]:
        return {name: {"norm": norm} for name, norm in self._norms.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        self._norms = {n: float(states[n]["norm"]) for n in self._layers if n in states}
