"""A layer under torch's own spectral normalization, times a bound, and plain again after it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spectralclip._operators import unchanged_rng
from spectralclip.methods._bare import make_plain_
from spectralclip.methods._domain import reshaped_kernel

# Torch itself warms its vectors up so much.
_WARM_UP = 15


@final
class _Times(nn.Module):
    """Multiplies with the bound."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.bound

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / self.bound


@final
class NormalizedLayer:
    """A layer under torch's parametrization."""

    def __init__(self, module: Any, bound: float, iterations: int, origin: str) -> None:
        """Parametrize the layer.

        Args:
            module: A plain one with a weight of its own.
            bound: The norm that its reshaped kernel shall have.
            iterations: Of the power method in each forward pass in training.
            origin: What the random vectors depend on.
        """
        self._module, self._origin = module, origin
        self._order = list(module._parameters)
        with unchanged_rng(module.weight.device):
            parametrizations.spectral_norm(module, n_power_iterations=iterations)
            parametrize.register_parametrization(module, "weight", _Times(bound), unsafe=True)
        self._list = module.parametrizations["weight"]
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Begin at vectors that do not depend on the global random state."""
        generator = torch.Generator("cpu").manual_seed(zlib.crc32(self._origin.encode()))
        drawn = {
            name: torch.randn(old.shape, generator=generator, device="cpu").to(old)
            for name, old in self._list[0].state_dict().items()
        }
        self._list[0].load_state_dict({name: v / v.norm() for name, v in drawn.items()})
        if bool(torch.isfinite(self._list.original).all()):
            mode = self._list[0].training
            self._list[0].train()
            for _ in range(_WARM_UP):
                self._list[0](self._list.original)
            self._list[0].train(mode)

    @property
    def bound(self) -> float:
        """What forward passes multiply with."""
        return float(self._list[1].bound)

    def set_bound(self, bound: float) -> None:
        """Say what the forward passes to come multiply with."""
        self._list[1].bound = bound

    @torch.no_grad()
    def norm(self) -> float:
        """Of the reshaped kernel as the layer uses it, as far as the present vectors tell."""
        vectors = self._list[0].state_dict()
        mode = self._list[0].training
        self._list[0].eval()  # a look is no iteration
        kernel = reshaped_kernel(self._module, self._list())
        self._list[0].train(mode)
        return float(torch.linalg.vector_norm(kernel @ vectors["_v"].to(kernel.dtype)))

    def state(self) -> dict[str, Any]:
        """The vectors of the power method, and the bound."""
        vectors = {name: vector.clone() for name, vector in self._list[0].state_dict().items()}
        return {"vectors": vectors, "bound": self.bound}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from them."""
        self._list[0].load_state_dict(state["vectors"])
        self.set_bound(float(state["bound"]))

    def remove(self) -> None:
        """A plain layer with the weight that it computes with."""
        make_plain_(self._module, "weight", self._order)
