"""Ours: what torch's `spectral_norm` is for dense layers, for every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, final

import torch
from torch import nn
from torch.nn.utils import parametrize

from spectralclip._common import as_shape, positive_number
from spectralclip._models import FoundLayer
from spectralclip._operators import Layer, is_plain, plain_numerics
from spectralclip._spectrum import spectral_norm
from spectralclip._training import BatchNorm, Method, MethodState, Promise, Sharing
from spectralclip.methods._bare import scales_with
from spectralclip.methods._domain import (
    WEIGHTED,
    OutsideDomain,
    affine_only,
    finite_estimate,
    sole_module,
)
from spectralclip.methods._parametrized import ParametrizedLayers
from spectralclip.methods._settings import check_count
from spectralclip.methods._true_norm import TrueNorm

M = TypeVar("M", bound=nn.Module)


@final
@dataclass(frozen=True)
class Parametrize(Method):
    """Scale the weight inside the layer by its true norm, with a gradient through the norm.

    Each layer's weight becomes a parametrization of torch, `W * min(1, c / sigma)`, where sigma is
    the norm of the layer itself: of the convolution with its padding, stride and image size, and
    not of its reshaped kernel, as with `torch.nn.utils.parametrizations.spectral_norm`. Gradients
    pass through sigma, by its leading singular vectors. These are kept warm, and refreshed after
    each step; evaluation changes nothing. A layer within its bound is unchanged, bit for bit,
    where torch's own divides small norms too.

    *Domain.* Every affine layer that is linear in a parameter named `weight`, except for batch
    norms and embeddings: dense layers, convolutions, transposed ones, and your own. Others are
    left alone.

    *Promise.* The norm is within the bound up to what the tracked sigma misses, which is below a
    percent in training and 1e-3 after `remove()`; `finalize(certify=True)` leaves plain layers
    within a proven bound. Until then the `state_dict` has the keys of torch's parametrizations,
    and the vectors as buffers: to go on from a checkpoint, attach first.

    *Cost.* For each step of the optimizer about 30 applications of the layer to one vector, and
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
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method, example = methods.get("parametrize")(), torch.zeros(1, 1, 9, 9)
        >>> with attach(method, model, example, optimizer, max_norm=0.5):
        ...     model(torch.randn(4, 1, 9, 9)).square().mean().backward()
        ...     optimizer.step()
        >>> bool(spectral_norm(model[0], (1, 9, 9)) < 0.501)
        True
    """

    iterations: int = 8
    check_every: int = 100

    promises: ClassVar[tuple[Promise, ...]] = (Promise(margin=2e-3),)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_count(1, iterations=self.iterations)
        check_count(0, check_every=self.check_every)

    @property
    def reparametrizes(self) -> bool:
        """Layers compute with other weights than their own."""
        return True

    @property
    def divides(self) -> bool:
        """Every process has to parametrize every layer."""
        return False

    def takes(self, layer: FoundLayer) -> bool:
        """Layers that are linear in a weight of their own; no batch norms or embeddings."""
        module = sole_module(layer)
        if module is None or not super().takes(layer):
            return False
        if not isinstance(module._parameters.get("weight"), nn.Parameter):
            return False
        return is_plain(module, *WEIGHTED) or scales_with(module, layer.in_shapes[0], "weight")

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Parametrize the layers, apart from frozen ones; what is above its bound is scaled."""
        moving = {name: bound for name, bound in bounds.items() if sharing.moves(name)}
        made = ParametrizedLayers(sharing.mine(), self.iterations, self.check_every, seed)
        made.take_up(moving)
        return made

    @staticmethod
    def estimate(
        module: Layer, in_shape: Sequence[int], *, generator: torch.Generator | None = None
    ) -> float:
        """The norm of the layer, to 1e-3.

        Raises:
            OutsideDomain: The layer is not affine.
            ValueError: Its weights are not finite.
        """
        with affine_only("Parametrize", module):
            norm = float(spectral_norm(module, in_shape, generator=generator))
        return finite_estimate("Parametrize", module, norm)


@plain_numerics()
def true_spectral_norm(
    module: M, in_shape: Sequence[int], max_norm: float = 1.0, *, iterations: int = 8, seed: int = 0
) -> M:
    """Bound the true norm of one layer by a parametrization of its weight.

    In place of `torch.nn.utils.parametrizations.spectral_norm`; see `Parametrize`.
    `torch.nn.utils.parametrize.remove_parametrizations(module, "weight")` leaves the plain layer.

    Args:
        module: An affine layer that is linear in its `weight`.
        in_shape: Shape of one input, without the batch dimension.
        max_norm: The bound.
        iterations: Rounds of refreshing at most, in training, when the weight has changed.
        seed: For the random vectors that the search begins with.

    Returns:
        The module itself.

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
    norm = TrueNorm(module, [as_shape(in_shape)], "weight", max_norm, seed)
    norm.iterations = iterations
    parametrize.register_parametrization(module, "weight", norm)
    return module
