"""Layers that compute something else from their weight, until they are made plain again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._operators import CONVS
from spectralclip._training import MethodState, Promise, Sharing
from spectralclip.methods._domain import DENSE, DomainMethod

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
    The new layer, whose norm is at most one, is multiplied with the bound.
    """

    def __init__(self, module: nn.Module, form: Form, bound: float) -> None:
        self.module: Any = module
        self._form, self.bound = form, bound
        module.forward = self

    def __call__(self, x: Tensor) -> Tensor:
        module, wide = self.module, self._wide()
        with torch.autocast(x.device.type, enabled=False):
            y = self.bound * self._form.linear(module, module.weight.to(wide), x.to(wide))
            if module.bias is not None:
                ones = [1] * (module.weight.ndim - 2)
                y = y + module.bias.to(wide).reshape(-1, *ones)
        return y.to(x.dtype)

    @torch.no_grad()
    def export_(self) -> bool:
        """Make the module plain again, with the weight that does what was done here.

        Says whether that has another shape than before.
        """
        module = self.module
        if vars(module).get("forward") is not self:
            return False
        parameter = module.weight
        weight = self.bound * self._form.export_(module, parameter.to(self._wide()))
        del module.forward
        if weight.shape == parameter.shape:
            parameter.copy_(weight)
            return False
        # The optimizer goes on to know it; a gradient of the old shape would be of no use.
        parameter.data, parameter.grad = weight.to(parameter.dtype).contiguous(), None
        return True

    def _wide(self) -> torch.dtype:
        """Fourier transforms and inverses need full precision."""
        dtype: torch.dtype = self.module.weight.dtype
        return torch.promote_types(dtype, torch.float32)


class SwapMethod(DomainMethod):
    """A method whose layers have a norm of at most their bound by construction."""

    kinds = (*DENSE, *CONVS)
    reparametrizes = True
    promises = (Promise(margin=1e-5),)

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers and convolutions with a weight that no other layer has."""
        shared = layer.shared if isinstance(layer, FoundLayer) else ()
        reason = f"its weight is shared with {', '.join(shared)}" if shared else ""
        return super().why_not(layer) or reason

    @abstractmethod
    def form(self, layer: FoundLayer) -> Form:
        """What is computed instead."""

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Swap the layers in, which changes what the model computes; frozen ones when they move."""
        return _Swaps(self, sharing, bounds)


@final
class _Swaps(MethodState):
    method: SwapMethod

    def __init__(self, method: SwapMethod, sharing: Sharing, bounds: Mapping[str, float]) -> None:
        super().__init__(method, sharing)
        self._forms = {name: method.form(layer) for name, layer in self.layers.items()}
        self._swapped: dict[str, Swapped] = {}
        for name, bound in bounds.items():
            if sharing.moves(name):
                self._swap(name, bound)

    def _swap(self, name: str, bound: float) -> None:
        """Swap a layer in, or tell one that is in already its bound."""
        if name not in self._swapped:
            module = self.layers[name].modules[0]
            self._swapped[name] = Swapped(module, self._forms[name], bound)
        self._swapped[name].bound = bound

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            self._swap(name, bound)  # it may have been freed since
            # What the construction promises of finite weights.
            is_finite = bool(torch.isfinite(self._swapped[name].module.weight).all())
            self.record(name, bound if is_finite else math.nan)

    def layer_states(self) -> dict[str, Any]:
        return {name: {"bound": swapped.bound} for name, swapped in self._swapped.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            if name in self._forms:
                self._swap(name, float(state["bound"]))

    def stop(self) -> None:
        for swapped in self._swapped.values():
            # Averages of the old shape would break the optimizer's next step: it begins anew.
            if swapped.export_():
                self.sharing.optimizers.forget(swapped.module.weight)
