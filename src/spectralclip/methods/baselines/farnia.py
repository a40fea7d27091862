"""Farnia et al. (2018): the power method by the transposed layer, one iteration a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spectralclip._common import Shape
from spectralclip._training import MethodState, Promise, Sharing
from spectralclip.methods._domain import WEIGHTED, EstimatingMethod, Source
from spectralclip.methods.baselines._power import PowerScaler, power_norm


@final
@dataclass(frozen=True)
class Farnia(EstimatingMethod):
    """Divide a weight by what its norm is above the bound, by one warm iteration a step.

    Farzan Farnia, Jesse M. Zhang, David Tse: *Generalizable Adversarial Training via Spectral
    Normalization*, ICLR 2019 (arXiv 1811.07457, 2018).

    The same idea as `Gouk`, with other constants: one iteration of the power method after each
    step, from the vector of the step before, and `W <- W / max(1, sigma / beta)`, where beta is
    `max_norm`. Batch norms are left alone. The authors divide within the forward pass, and let
    gradients through the division; here it is done to the weight itself after the step, so that
    the model stays plain.

    *Domain*: dense layers, convolutions and transposed ones of any padding, stride, groups and
    dilation. Others are left alone.

    *Promise*: with weights that move slowly, the followed norm tends to the true one from below,
    and the layer's norm to at most the bound.

    *Cost*: three matvecs a layer and step.

    *Known failure*: in the first steps the vector is still a random one, and the norm far above
    the bound; later it lags behind weights that move fast. Like `Gouk`, it lowers all singular
    values where few are above the bound.

    Args:
        power_iterations: After each step.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, spectral_norm
        >>> conv, method = torch.nn.Conv2d(1, 8, 3), methods.get("farnia")()
        >>> attachment = attach(conv, None, torch.zeros(1, 1, 12, 12), method=method, max_norm=0.5)
        >>> for _ in range(100):
        ...     attachment.step()
        >>> bool(spectral_norm(conv, (1, 12, 12)) < 0.505)
        True
    """

    power_iterations: int = 1

    kinds = WEIGHTED
    promises = (Promise(steps=300, margin=5e-3),)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; weights stay as they are until the first step."""
        return PowerScaler(self, sharing, seed, self.power_iterations, warm=True)

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """By the power method from a random start, which following a layer at rest comes to."""
        return power_norm(module, in_shape, generator, **settings)
