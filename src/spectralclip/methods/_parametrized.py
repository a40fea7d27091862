"""The layers of one model that divide their weight by what their norm is above a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from torch.nn.utils import parametrize

from spectralclip._models import FoundLayer
from spectralclip._training import MethodState, warn
from spectralclip.methods._true_norm import TrueNorm


@final
class ParametrizedLayers(MethodState):
    """Layers under `TrueNorm`, each from when training first moves it."""

    def __init__(
        self, layers: Mapping[str, FoundLayer], iterations: int, check_every: int, seed: int
    ) -> None:
        self._layers, self._seed = dict(layers), seed
        self._iterations, self._check_every = iterations, check_every
        self._made: dict[str, TrueNorm] = {}
        self._lost: set[str] = set()

    @property
    def applications(self) -> int:
        """Vectors sent through layers so far."""
        return sum(norm.applications for norm in self._made.values())

    def take_up(self, bounds: Mapping[str, float]) -> None:
        """Parametrize these layers, or none of them.

        Raises:
            ValueError: One of them is not finite, or not linear in its weight alone.
        """
        made = {}
        for name, bound in bounds.items():
            layer = self._layers[name]
            made[name] = TrueNorm(layer.modules[0], layer.in_shapes, "weight", bound, self._seed)
            made[name].iterations = self._iterations
        for name, norm in made.items():
            parametrize.register_parametrization(self._layers[name].modules[0], "weight", norm)
        self._made |= made

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        every = self._check_every
        for name, bound in bounds.items():
            if name not in self._made and not self._takes_up_late(name, bound):
                continue
            norm = self._made[name]
            norm.max_norm = bound
            norm.refresh()
            if math.isfinite(norm.norm()):
                self._lost.discard(name)
                if every and step % every == 0:
                    norm.search()
            else:
                self._lose(
                    name, f"Layer {name!r} has weights that are NaN or infinite: restore them."
                )

    def _takes_up_late(self, name: str, bound: float) -> bool:
        """Whether a layer that was frozen at the start can be parametrized now."""
        try:
            self.take_up({name: bound})
        except ValueError as error:
            self._lose(name, f"Layer {name!r} has been freed, and cannot be held yet: {error}")
            return False
        return True

    def _lose(self, name: str, why: str) -> None:
        """Say so once, until the layer is there again."""
        if name not in self._lost:
            self._lost.add(name)
            warn(why)

    def norms(self) -> dict[str, float]:
        lost = dict.fromkeys(sorted(self._lost), math.nan)
        return lost | {name: norm.norm() for name, norm in self._made.items()}

    def layer_states(self) -> dict[str, Any]:
        """The bounds: all else is in the buffers of the model."""
        return {name: {"bound": norm.max_norm} for name, norm in self._made.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            if name in self._made:
                self._made[name].max_norm = float(state["bound"])

    def stop(self) -> None:
        for name, norm in self._made.items():
            norm.remove_(search=name not in self._lost)
