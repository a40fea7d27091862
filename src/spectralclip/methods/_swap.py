"""Layers that compute something else from their weight, until they are made plain again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectralclip._layers import FoundLayer
from spectralclip._sharing import Sharing
from spectralclip._train import Keeper, Method
from spectralclip.methods._domain import require
from spectralclip.methods._stated import Promise

Transform = Callable[[Tensor], Tensor]


class Form(ABC):
    """What is computed from a layer's weight, and the plain layer that does the same."""

    @abstractmethod
    def linear(self, module: Any, weight: Tensor, x: Tensor) -> Tensor:
        """The new layer on a batch, without the bias."""

    @abstractmethod
    def export_(self, module: Any, weight: Tensor) -> Tensor:
        """Give the module the geometry that the new layer has, and return its weight."""


@final
class OwnShape(Form):
    """The layer as it is, with a weight of the same shape."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def linear(self, module: Any, weight: Tensor, x: Tensor) -> Tensor:
        new = self._transform(weight)
        if isinstance(module, nn.Linear):
            return F.linear(x, new)
        image: Tensor = module._conv_forward(x, new, None)
        return image

    def export_(self, module: Any, weight: Tensor) -> Tensor:
        return self._transform(weight)


@final
class Swapped:
    """Stands in for the `forward` of a module, as an attribute of it.

    So the module stays the same object, with its name, its hooks and its parameters, and the
    `state_dict` of the model has the same keys as before. Copies of the model get copies of this.

    Attributes:
        bound: What the new layer, whose norm is at most one, is multiplied with.
    """

    def __init__(self, module: nn.Module, form: Form, bound: float) -> None:
        self._module: Any = module
        self._form, self.bound = form, bound
        module.forward = self

    def __call__(self, x: Tensor) -> Tensor:
        module, wide = self._module, self._wide()
        with torch.autocast(x.device.type, enabled=False):
            y = self.bound * self._form.linear(module, module.weight.to(wide), x.to(wide))
            if module.bias is not None:
                ones = [1] * (module.weight.ndim - 2)
                y = y + module.bias.to(wide).reshape(-1, *ones)
        return y.to(x.dtype)

    @torch.no_grad()
    def export_(self) -> None:
        """Make the module plain again, with the weight that does what was done here."""
        module = self._module
        if vars(module).get("forward") is not self:
            return
        parameter = module.weight
        weight = self.bound * self._form.export_(module, parameter.to(self._wide()))
        del module.forward
        if weight.shape == parameter.shape:
            parameter.copy_(weight)
        else:
            # The optimizer goes on to know it; a gradient of the old shape would be of no use.
            parameter.data, parameter.grad = weight.to(parameter.dtype).contiguous(), None

    def _wide(self) -> torch.dtype:
        """Fourier transforms and inverses need full precision."""
        dtype: torch.dtype = self._module.weight.dtype
        return torch.promote_types(dtype, torch.float32)


class SwapMethod(Method, ABC):
    """A method whose layers have a norm of at most their bound by construction."""

    promises: ClassVar[tuple[Promise, ...]] = (Promise(slack=1e-5),)

    @property
    def divides(self) -> bool:
        """Every process has to swap every layer."""
        return False

    @abstractmethod
    def why_not(self, layer: FoundLayer) -> str:
        """Why the method is not defined for a layer; empty if it is."""

    @abstractmethod
    def form(self, layer: FoundLayer) -> Form:
        """What is computed instead."""

    def takes(self, layer: FoundLayer) -> bool:
        """Layers inside the domain; others are left as they are."""
        return not self.why_not(layer)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> Keeper:
        """Swap the layers in, apart from frozen ones. What the model computes changes here."""
        layers = {name: layer for name, layer in sharing.mine().items() if sharing.moves(name)}
        for layer in layers.values():
            require(type(self).__name__, layer.modules[0], self.why_not(layer))
        forms = {name: self.form(layer) for name, layer in layers.items()}
        return _Swaps(
            {
                name: Swapped(layer.modules[0], forms[name], bounds[name])
                for name, layer in layers.items()
            }
        )


@final
class _Swaps(Keeper):
    """The swapped layers of one model."""

    def __init__(self, swapped: Mapping[str, Swapped]) -> None:
        self._swapped = dict(swapped)

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            if name in self._swapped:
                self._swapped[name].bound = bound

    def norms(self) -> dict[str, float]:
        """The bounds: what the construction promises."""
        return {name: swapped.bound for name, swapped in self._swapped.items()}

    def layer_states(self) -> dict[str, Any]:
        return {name: {"bound": swapped.bound} for name, swapped in self._swapped.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            if name in self._swapped:
                self._swapped[name].bound = float(state["bound"])

    def stop(self) -> None:
        for swapped in self._swapped.values():
            swapped.export_()
