"""Ours: what torch's `spectral_norm` is for dense layers, for every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import nn
from torch.nn.utils import parametrize

from spectralclip._affine import Layer, as_shape, plain_numerics
from spectralclip._layers import FoundLayer
from spectralclip._sharing import Sharing
from spectralclip._svds import spectral_norm
from spectralclip._train import Keeper, Method, warn
from spectralclip.methods._domain import OutsideDomain, sole_module
from spectralclip.methods._settings import check_count, check_positive
from spectralclip.methods._stated import Promise
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
    norms and embeddings: dense layers, convolutions, transposed ones, and your own.

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

    promises: ClassVar[tuple[Promise, ...]] = (Promise(slack=2e-3),)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_count(1, iterations=self.iterations)
        check_count(0, check_every=self.check_every)

    @property
    def divides(self) -> bool:
        """Every process has to parametrize every layer."""
        return False

    def takes(self, layer: FoundLayer) -> bool:
        """Layers with a weight of their own, apart from batch norms and embeddings."""
        module = sole_module(layer)
        if module is None or not super().takes(layer):
            return False
        return isinstance(module._parameters.get("weight"), nn.Parameter)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> Keeper:
        """Parametrize the layers, apart from frozen ones; what is above its bound is scaled."""
        made: dict[str, tuple[nn.Module, TrueNorm]] = {}
        for name, layer in sharing.mine().items():
            if sharing.moves(name):
                module = layer.modules[0]
                norm = TrueNorm(module, layer.in_shapes, "weight", bounds[name], seed)
                norm.iterations = self.iterations
                made[name] = module, norm
        for module, norm in made.values():
            parametrize.register_parametrization(module, "weight", norm)
        return _Parametrized(self, {name: norm for name, (_, norm) in made.items()})

    @staticmethod
    def estimate(
        module: Layer, in_shape: Sequence[int], *, generator: torch.Generator | None = None
    ) -> float:
        """The norm of the layer, to 1e-3."""
        return float(spectral_norm(module, in_shape, generator=generator))


@final
class _Parametrized(Keeper):
    """The parametrized layers of one model."""

    def __init__(self, method: Parametrize, norms: Mapping[str, TrueNorm]) -> None:
        self._method, self._made = method, dict(norms)
        self._lost: set[str] = set()

    @property
    def applications(self) -> int:
        """Vectors sent through layers so far."""
        return sum(norm.applications for norm in self._made.values())

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        every = self._method.check_every
        for name, bound in bounds.items():
            if name not in self._made:
                continue
            norm = self._made[name]
            norm.max_norm = bound
            norm.refresh()
            if math.isfinite(norm.norm()):
                self._lost.discard(name)
                if every and step % every == 0:
                    norm.search()
            elif name not in self._lost:
                self._lost.add(name)
                warn(f"Layer {name!r} has weights that are NaN or infinite: restore them.")

    def norms(self) -> dict[str, float]:
        return {name: norm.norm() for name, norm in self._made.items()}

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
        OutsideDomain: The layer has no weight, or is not linear in it alone.

    Example:
        >>> import torch
        >>> from spectralclip import spectral_norm
        >>> from spectralclip.methods.parametrize import true_spectral_norm
        >>> conv = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1, padding_mode="reflect")
        >>> conv = true_spectral_norm(conv, (3, 12, 12), max_norm=0.5)
        >>> bool(spectral_norm(conv, (3, 12, 12)) < 0.501)
        True
    """
    check_positive(max_norm=max_norm)
    check_count(1, iterations=iterations)
    if not isinstance(getattr(module, "_parameters", {}).get("weight"), nn.Parameter):
        why = "it needs a parameter 'weight' of the module's own, without a parametrization"
        raise OutsideDomain("true_spectral_norm", module, why)
    norm = TrueNorm(module, [as_shape(in_shape)], "weight", float(max_norm), seed)
    norm.iterations = iterations
    parametrize.register_parametrization(module, "weight", norm)
    return module
