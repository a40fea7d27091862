"""Miyato et al. (2018): spectral normalization of the reshaped kernel, in the forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spectralclip._common import Shape
from spectralclip._linalg import largest_singular_value
from spectralclip._operators import unchanged_rng
from spectralclip._training import MethodState, Promise, Sharing
from spectralclip.methods._domain import (
    WEIGHTED,
    EstimatingMethod,
    Source,
    reshaped_kernel,
    sole_module,
)
from spectralclip.methods._true_norm import make_plain_

# Torch itself warms its vectors up so much.
_WARM_UP = 15


@final
@dataclass(frozen=True)
class Miyato(EstimatingMethod):
    """Divide the weight by the norm of its reshaped kernel, each time that it is used.

    Takeru Miyato, Toshiki Kataoka, Masanori Koyama, Yuichi Yoshida: *Spectral Normalization for
    Generative Adversarial Networks*, ICLR 2018 (arXiv 1802.05957).

    The kernel of a convolution is taken for a matrix K with a row for each output channel. A
    layer computes with `max_norm * W / sigma(K)`, where sigma comes from one iteration of the
    power method on K in each forward pass in training, and gradients go through the division.
    This is torch's own `torch.nn.utils.parametrizations.spectral_norm`, times `max_norm`. Norms
    are set to the bound, small ones too.

    While it is attached, the model's `state_dict` has the keys of the parametrization: attach
    before loading a checkpoint that was made so. `finalize()` and `remove()` leave plain layers
    with the weights that they computed with, under the keys that there were before.

    *Domain*: dense layers, convolutions and transposed ones. Others, batch norms among them, are
    left alone; weights of zeros, which have no direction, are refused. Of layers that share a
    weight all are left with the smallest of their bounds in the end.

    *Promise*: the norm of the *reshaped kernel* is the bound, for weights that move slowly. For
    dense layers and 1x1 convolutions of stride 1 without groups that is the layer's norm.

    *Cost*: two products with K in each forward pass, next to nothing. It does not depend on the
    size of the image. Among several processes each does all of it.

    *Known failure*: the norm of K is not that of the convolution, which depends on padding, stride
    and the size of the image too. With zero padding the truth is up to k times the bound for
    k x k kernels, and about twice the bound for random ones of 3 x 3. With groups, whose
    kernels stand one below the other in K, it can be far below the bound as well. And one
    iteration lags behind weights that move fast: then sigma is too small.

    Args:
        power_iterations: In each forward pass in training.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> x = torch.randn(4, 3, 8, 8)
        >>> with attach(model, optimizer, x, method=methods.get("miyato")(), max_norm=0.5):
        ...     for _ in range(50):
        ...         optimizer.zero_grad()
        ...         model(x).square().mean().backward()
        ...         optimizer.step()
        >>> bool((torch.linalg.matrix_norm(model[0].weight.flatten(1), 2) - 0.5).abs() < 0.01)
        True
    """

    power_iterations: int = 1

    kinds = WEIGHTED
    reparametrizes = True
    promises = (Promise(of="kernel", steps=100),)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Parametrize the layers that training moves."""
        return _Normalized(self, sharing, bounds, seed)

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """The norm of the reshaped kernel, whatever the `in_shape`."""
        return largest_singular_value(reshaped_kernel(sole_module(module)).detach())


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
class _Normalized(MethodState):
    """Layers under torch's parametrization, times a bound, each from when training moves it."""

    method: Miyato

    def __init__(
        self, method: Miyato, sharing: Sharing, bounds: Mapping[str, float], seed: int
    ) -> None:
        super().__init__(method, sharing, seed)
        # By layer: torch's own, then `_Times`; and the module's parameters as they were before.
        self._made: dict[str, Any] = {}
        self._orders: dict[str, list[str]] = {}
        moving = {name: bound for name, bound in bounds.items() if sharing.moves(name)}
        for name in moving:
            if not bool(sole_module(self.layers[name]).weight.any()):
                raise ValueError(
                    f"Layer {name!r} has a weight of zeros, which Miyato cannot divide by its "
                    "norm: start it with other values, or leave the layer out."
                )
        for name, bound in moving.items():
            self._parametrize(name, bound)

    def _parametrize(self, name: str, bound: float) -> None:
        module: Any = self.layers[name].modules[0]
        self._orders[name] = list(module._parameters)
        with unchanged_rng(module.weight.device):
            parametrizations.spectral_norm(module, n_power_iterations=self.method.power_iterations)
            parametrize.register_parametrization(module, "weight", _Times(bound), unsafe=True)
        self._made[name] = module.parametrizations["weight"]
        self._draw(name)

    @torch.no_grad()
    def _draw(self, name: str) -> None:
        """Begin at vectors that do not depend on the global random state."""
        own, generator = self._made[name][0], self.generator(name)
        drawn = {
            key: torch.randn(old.shape, generator=generator, device="cpu").to(old)
            for key, old in own.state_dict().items()
        }
        own.load_state_dict({key: v / v.norm() for key, v in drawn.items()})
        if bool(torch.isfinite(self._made[name].original).all()):
            mode = own.training
            own.train()
            for _ in range(_WARM_UP):
                own(self._made[name].original)
            own.train(mode)

    @torch.no_grad()
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            if name not in self._made:  # freed since
                self._parametrize(name, bound)
            made = self._made[name]
            made[1].bound = bound
            mode = made[0].training
            made[0].eval()  # to measure is no iteration
            kernel = reshaped_kernel(self.layers[name].modules[0], made())
            made[0].train(mode)
            norm = float(torch.linalg.vector_norm(kernel @ made[0]._v.to(kernel.dtype)))
            if not math.isfinite(norm):
                self._draw(name)  # NaN would stay in the vectors when the weights are restored
            self.record(name, norm)

    def layer_states(self) -> dict[str, Any]:
        states = {}
        for name, made in self._made.items():
            vectors = {key: vector.clone() for key, vector in made[0].state_dict().items()}
            states[name] = {"vectors": vectors, "bound": float(made[1].bound)}
        return states

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for name, made in self._made.items():
            if name in states:
                made[0].load_state_dict(states[name]["vectors"])
                made[1].bound = float(states[name]["bound"])

    def stop(self) -> None:
        # The last one scales a weight that several layers share: it has to be within all bounds.
        for name in sorted(self._made, key=lambda name: -float(self._made[name][1].bound)):
            del self._made[name]
            make_plain_(self.layers[name].modules[0], self._orders[name])
