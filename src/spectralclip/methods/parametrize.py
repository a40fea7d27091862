"""Ours: what torch's `spectral_norm` is for dense layers, for every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from torch import nn
from torch.nn.utils import parametrize

from spectralclip._common import Shape, as_shape, positive_number
from spectralclip._models import FoundLayer
from spectralclip._operators import is_plain, plain_numerics
from spectralclip._spectrum import spectral_norm
from spectralclip._training import BatchNorm, MethodState, Promise, Sharing
from spectralclip.methods._domain import (
    WEIGHTED,
    EstimatingMethod,
    OutsideDomain,
    Source,
    affine_only,
    check_count,
    sole_module,
)
from spectralclip.methods._true_norm import TrueNorm, scales_with_weight

M = TypeVar("M", bound=nn.Module)


@final
@dataclass(frozen=True)
class Parametrize(EstimatingMethod):
    """Scale the weight inside the layer by its true norm, with a gradient through the norm.

    Each layer's weight becomes a parametrization of torch, `W * min(1, c / sigma)`, where sigma is
    the norm of the layer itself: of the convolution with its padding, stride and image size, and
    not of its reshaped kernel, as with `torch.nn.utils.parametrizations.spectral_norm`. Gradients
    pass through sigma, by its leading singular vectors, refreshed after each step; evaluation
    changes nothing. A layer within its bound is unchanged, bit for bit.

    *Domain.* Every affine layer that is linear in a parameter named `weight`, except for batch
    norms and embeddings: dense layers, convolutions, transposed ones, and your own. Others are
    left alone.

    *Promise.* The norm is within the bound up to what the tracked sigma misses, which is below a
    percent in training and 1e-3 after `remove()`; `finalize(certify=True)` leaves plain layers
    within a proven bound. Until then the `state_dict` has the keys of torch's parametrizations,
    and the vectors as buffers: to go on from a checkpoint, attach first.

    *Cost.* For each step of the optimizer about 30 products of the layer with one vector, and
    one weight gradient; none in evaluation, nor for further forward passes of the same step.

    *Known failure.* Dividing lowers all singular values along with the largest; `SpectralClip`
    moves only what is too large. Above the bound the scale of W has no influence, and grows.

    Attributes:
        iterations: Rounds of refreshing after a step, at most.
        check_every: After so many steps the norm is searched for anew, from random vectors; 0 for
            never.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, spectral_norm
        >>> conv, method = torch.nn.Conv2d(1, 8, 3), methods.get("parametrize")()
        >>> with attach(conv, None, torch.zeros(1, 1, 9, 9), method=method, max_norm=0.5):
        ...     pass  # train it here
        >>> bool(spectral_norm(conv, (1, 9, 9)) < 0.501)
        True
    """

    iterations: int = 8
    check_every: int = 100

    reparametrizes = True
    promises = (Promise(margin=2e-3),)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_count(1, iterations=self.iterations)
        check_count(0, check_every=self.check_every)

    def takes(self, layer: FoundLayer) -> bool:
        """Layers that are linear in a weight of their own; no batch norms or embeddings."""
        module = sole_module(layer)
        if module is None or not super().takes(layer):
            return False
        if not isinstance(module._parameters.get("weight"), nn.Parameter):
            return False
        return is_plain(module, *WEIGHTED) or scales_with_weight(module, layer.in_shapes[0])

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Parametrize the layers, apart from frozen ones; what is above its bound is scaled."""
        state = _Parametrized(self, sharing, seed)
        state.parametrize({name: bound for name, bound in bounds.items() if sharing.moves(name)})
        return state

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """The norm of the layer, to 1e-3."""
        with affine_only("Parametrize", module):
            return float(spectral_norm(module, in_shape, generator=generator))


@final
class _Parametrized(MethodState):
    """Layers under `TrueNorm`, each from when training first moves it."""

    method: Parametrize

    def __init__(self, method: Parametrize, sharing: Sharing, seed: int) -> None:
        super().__init__(method, sharing, seed)
        self._made: dict[str, TrueNorm] = {}

    @property
    def num_matvecs(self) -> int:
        """Vectors sent through layers so far."""
        return sum(norm.num_matvecs for norm in self._made.values())

    def parametrize(self, bounds: Mapping[str, float]) -> None:
        """Parametrize these layers, or none of them, if one is not finite or not linear."""
        made, iterations = {}, self.method.iterations
        for name, bound in bounds.items():
            layer = self.layers[name]
            made[name] = TrueNorm(layer.modules[0], layer.in_shapes, bound, self.seed, iterations)
        for name, norm in made.items():
            parametrize.register_parametrization(self.layers[name].modules[0], "weight", norm)
        self._made |= made

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        every = self.method.check_every
        for name, bound in bounds.items():
            try:
                if name not in self._made:
                    self.parametrize({name: bound})
            except ValueError as error:
                self.record(name, math.nan, f"it has been freed, and cannot be held yet: {error}")
                continue
            norm = self._made[name]
            norm.max_norm = bound
            norm.refresh()
            if math.isfinite(norm.norm()) and every and step % every == 0:
                norm.search()
            self.record(name, norm.norm())

    def layer_states(self) -> dict[str, Any]:
        """The bounds: all else is in the buffers of the model."""
        return {name: {"bound": norm.max_norm} for name, norm in self._made.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            if name in self._made:
                self._made[name].max_norm = float(state["bound"])

    def stop(self) -> None:
        norms = self.norms()
        for name, norm in self._made.items():
            norm.remove_(search=not math.isnan(norms.get(name, 0.0)))


@plain_numerics()
def true_spectral_norm(
    module: M, in_shape: Sequence[int], max_norm: float = 1.0, *, iterations: int = 8, seed: int = 0
) -> M:
    """Bound the true norm of one layer by a parametrization of its weight; the module itself.

    In place of `torch.nn.utils.parametrizations.spectral_norm`; see `Parametrize`.
    `torch.nn.utils.parametrize.remove_parametrizations(module, "weight")` leaves the plain layer.

    Args:
        module: An affine layer that is linear in its `weight`.
        in_shape: Shape of one input, without the batch dimension.
        max_norm: The bound.
        iterations: Rounds of refreshing at most, in training, when the weight has changed.
        seed: For the random vectors that the search begins with.

    Raises:
        OutsideDomain: The layer has no weight, is not linear in it alone, or is a batch norm.

    Example:
        >>> import torch
        >>> from spectralclip import spectral_norm
        >>> from spectralclip.methods.parametrize import true_spectral_norm
        >>> conv = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1, padding_mode="reflect")
        >>> conv = true_spectral_norm(conv, (3, 12, 12), max_norm=0.5)
        >>> bool(spectral_norm(conv, (3, 12, 12)) < 0.501)
        True
    """
    max_norm = positive_number(max_norm, "max_norm")
    check_count(1, iterations=iterations)
    if not isinstance(getattr(module, "_parameters", {}).get("weight"), nn.Parameter):
        why = "it needs a parameter 'weight' of the module's own, without a parametrization"
        raise OutsideDomain("true_spectral_norm", module, why)
    if isinstance(module, BatchNorm):
        why = "its norm depends on the running variance, which moves while the weight is at rest"
        raise OutsideDomain("true_spectral_norm", module, why, "ClipBatchNorm holds batch norms.")
    norm = TrueNorm(module, [as_shape(in_shape)], max_norm, seed, iterations)
    parametrize.register_parametrization(module, "weight", norm)
    return module
