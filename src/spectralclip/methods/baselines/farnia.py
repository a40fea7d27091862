"""Farnia et al. (2018): the power method by the transposed layer, one iteration a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from spectralclip._common import Shape
from spectralclip._training import MethodState, Promise, Sharing
from spectralclip.methods._domain import WEIGHTED, DomainMethod, check_count, why_not_plain
from spectralclip.methods.baselines._power import PowerScaler, power_norm


@final
@dataclass(frozen=True)
class Farnia(DomainMethod):
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
    the bound; later it lags behind weights that move fast. And a division lowers all singular
    values where few are above the bound, which costs accuracy.

    Args:
        power_iterations: After each step.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, spectral_norm
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> x = torch.randn(4, 1, 12, 12)
        >>> with attach(
        ...     model, optimizer, x, method=methods.get("farnia")(), max_norm=0.5
        ... ) as attachment:
        ...     for _ in range(100):
        ...         optimizer.zero_grad()
        ...         model(x).square().mean().backward()
        ...         optimizer.step()
        >>> bool(spectral_norm(model[0], (1, 12, 12)) < 0.505)
        True
    """

    power_iterations: int = 1

    promises: ClassVar[tuple[Promise, ...]] = (Promise(steps=300, margin=5e-3),)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_count(1, power_iterations=self.power_iterations)

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers and convolutions."""
        return why_not_plain(layer, *WEIGHTED)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; weights stay as they are until the first step."""
        return PowerScaler(self, sharing, seed, self.power_iterations, warm=True)

    @classmethod
    def norm_of(
        cls, module: Any, in_shape: Shape, generator: torch.Generator | None, **settings: Any
    ) -> float:
        """By the power method from a random start, which following a layer at rest comes to."""
        return power_norm(module, in_shape, generator, **settings)
