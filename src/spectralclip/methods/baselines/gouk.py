"""Gouk et al. (2021): the power method by the transposed layer, and scaling where above."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spectralclip._clipping import clamp_batch_norm_
from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._training import MethodState, Promise, Sharing
from spectralclip.methods._domain import (
    WEIGHTED,
    EstimatingMethod,
    Source,
    is_batch_norm,
    sole_module,
)
from spectralclip.methods.baselines._power import PowerScaler, power_norm


@final
@dataclass(frozen=True)
class Gouk(EstimatingMethod):
    """Divide a weight by what its norm is above the bound, after each step.

    Henry Gouk, Eibe Frank, Bernhard Pfahringer, Michael J. Cree: *Regularisation of Neural
    Networks by Enforcing Lipschitz Continuity*, Machine Learning 110, 2021 (arXiv 1804.04368).

    The norm comes from a few iterations of the power method, `x <- M^T M x`, where `M` is the layer
    itself and `M^T` the transposed one: so it sees padding and stride as they are, unlike the
    norm of the reshaped kernel (`Miyato`). Then `W <- W / max(1, sigma / max_norm)`. In a batch
    norm each `gamma_i` whose factor `gamma_i / sqrt(running_var_i + eps)` is above the bound is
    set to the bound, which is exact. (The authors' code divides all of them by the largest
    excess; the clamp is what has been compared since.)

    *Domain*: dense layers, convolutions and transposed ones of any padding, stride, groups and
    dilation; batch norms with a scale and running statistics. Others are left alone.

    *Promise*: the estimate tends to the true norm, from below, and is within 1e-3 of it after
    enough iterations, some hundred in general and a thousand where values lie close together; then
    the layer's norm is within as much of the bound.

    *Cost*: `2 power_iterations + 1` matvecs a layer and step.

    *Known failure*: the few iterations begin again at the same random vector after each step, as
    in the authors' code, and find a norm that is too small, by 5 to 15 %: what is left above the
    bound is never seen. `warm=True` goes on from the vector of the step before, which holds on to
    its frequency and is late to see another one grow. And a division lowers all singular values
    where few are above the bound, which costs accuracy.

    Args:
        power_iterations: After each step.
        warm: Begin at the vector of the step before.
        batch_norm: Clamp batch norms too.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, spectral_norm
        >>> conv, method = torch.nn.Conv2d(1, 8, 3), methods.get("gouk")(power_iterations=50)
        >>> attachment = attach(conv, None, torch.zeros(1, 1, 12, 12), method=method, max_norm=0.5)
        >>> attachment.step()
        >>> bool(spectral_norm(conv, (1, 12, 12)) < 0.505)
        True
    """

    power_iterations: int = 5
    warm: bool = False
    batch_norm: bool = True

    kinds = WEIGHTED
    promises = (Promise(settings={"power_iterations": 1000}),)

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers, convolutions, and batch norms with a scale and statistics."""
        return "" if is_batch_norm(layer) else super().why_not(layer, *in_shapes)

    def takes(self, layer: FoundLayer) -> bool:
        """Batch norms only if asked for."""
        return super().takes(layer) and (self.batch_norm or not is_batch_norm(layer))

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; weights stay as they are until the first step."""
        return PowerScaler(self, sharing, seed, self.power_iterations, warm=self.warm)

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """By the power method from a random start; of a batch norm, exactly."""
        if is_batch_norm(module):
            return clamp_batch_norm_(sole_module(module), math.inf)
        return power_norm(module, in_shape, generator, **settings)
