"""The clamp of Gouk et al. (2021) on the scales of batch norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from spectralclip._clipping import clamp_batch_norm_
from spectralclip._models import FoundLayer
from spectralclip._training import Method, MethodState, Promise, Sharing
from spectralclip.methods._domain import is_batch_norm


@final
@dataclass(frozen=True)
class ClipBatchNorm(Method):
    """Clamp the scale of every batch norm after each step (Gouk et al. 2021).

    With its running statistics a batch norm multiplies channel i by
    `gamma_i / sqrt(running_var_i + eps)`, so that its norm is the largest magnitude among these
    factors. Where one is above the bound, `gamma_i` is set to the bound, with its sign; nothing
    else changes.

    *Domain.* Batch norms. Those without a scale (`affine=False`) or without running statistics are
    left alone, as are all other layers: attach another method beside it for those.

    *Promise.* The norm is within the bound after each step, until the next batch moves the running
    variance.

    *Cost.* A few operations for each channel.

    *Known failure.* Bounding a batch norm apart from the layer in front of it bounds their product,
    and more than need be: the paper finds that it hinders training.
    `SpectralClip(compose="conv_bn")` and `FastClip(concat=True)` bound the composition instead.

    Example:
        >>> import torch
        >>> from spectralclip import attach
        >>> from spectralclip.methods import ClipBatchNorm
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> attachment = attach(
        ...     model, optimizer, torch.zeros(2, 4), method=ClipBatchNorm(), max_norm=0.5
        ... )
        >>> model(torch.randn(8, 4)).square().sum().backward()
        >>> optimizer.step()
        >>> round(attachment.norms()["1"], 6)
        0.5
    """

    promises = (Promise(margin=1e-5),)

    def takes(self, layer: FoundLayer) -> bool:
        """Batch norms with a scale of their own and running statistics."""
        return is_batch_norm(layer)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; there is nothing to prepare."""
        return _Clamps(self, sharing)


@final
class _Clamps(MethodState):
    """The batch norms of one model."""

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            self.record(name, clamp_batch_norm_(self.layers[name].modules[0], bound))
