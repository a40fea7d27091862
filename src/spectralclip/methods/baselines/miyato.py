"""Miyato et al. (2018): spectral normalization of the reshaped kernel, in the forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from spectralclip._common import Shape
from spectralclip._linalg import largest_singular_value
from spectralclip._models import FoundLayer
from spectralclip._operators import Layer
from spectralclip._training import Keeper, Method, Promise, Sharing, warn
from spectralclip.methods._domain import (
    WEIGHTED,
    finite_estimate,
    require,
    reshaped_kernel,
    sole_module,
    why_not_plain,
)
from spectralclip.methods._settings import check_count
from spectralclip.methods.baselines._normalized import NormalizedLayer


@final
@dataclass(frozen=True)
class Miyato(Method):
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
        >>> with attach(methods.get("miyato")(), model, x, optimizer, max_norm=0.5):
        ...     for _ in range(50):
        ...         optimizer.zero_grad()
        ...         model(x).square().mean().backward()
        ...         optimizer.step()
        >>> bool((torch.linalg.matrix_norm(model[0].weight.flatten(1), 2) - 0.5).abs() < 0.01)
        True
    """

    power_iterations: int = 1

    promises: ClassVar[tuple[Promise, ...]] = (Promise(of="kernel", steps=100),)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_count(1, power_iterations=self.power_iterations)

    @property
    def reparametrizes(self) -> bool:
        """Layers compute with other weights than their own."""
        return True

    @property
    def divides(self) -> bool:
        """Every process computes with normalized weights."""
        return False

    def takes(self, layer: FoundLayer) -> bool:
        """Dense layers and convolutions with a weight of their own."""
        return not why_not_plain(layer, *WEIGHTED)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> Keeper:
        """Parametrize the layers that training moves."""
        return _Normalizer(self, sharing, bounds, seed)

    @staticmethod
    def estimate(
        module: Layer, in_shape: Shape, *, generator: torch.Generator | None = None
    ) -> float:
        """The norm of the reshaped kernel: what the iteration tends to, whatever the `in_shape`.

        Args:
            module: A dense layer, convolution or transposed one.
            in_shape: Not looked at, which is what is wrong with it.
            generator: Not needed.

        Raises:
            OutsideDomain: The layer is of another kind.
            ValueError: Its weights are not finite.
        """
        require("Miyato", module, why_not_plain(module, *WEIGHTED))
        kernel = reshaped_kernel(sole_module(module)).detach()
        return finite_estimate("Miyato", module, largest_singular_value(kernel))


@final
class _Normalizer(Keeper):
    """The parametrized layers of one model."""

    def __init__(
        self, method: Miyato, sharing: Sharing, bounds: Mapping[str, float], seed: int
    ) -> None:
        self._layers, self._seed = sharing.mine(), seed
        self._iterations = method.power_iterations
        self._held: dict[str, NormalizedLayer] = {}
        self._norms: dict[str, float] = {}
        moving = {name: bound for name, bound in bounds.items() if sharing.moves(name)}
        for name in moving:
            _require_a_direction(name, self._layers[name])
        for name, bound in moving.items():
            self._hold(name, bound)

    def _hold(self, name: str, bound: float) -> None:
        module = self._layers[name].modules[0]
        self._held[name] = NormalizedLayer(module, bound, self._iterations, f"{self._seed}, {name}")

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            if name not in self._held:  # freed since
                self._hold(name, bound)
            held = self._held[name]
            held.set_bound(bound)
            norm = held.norm()
            if not math.isfinite(norm):
                held.draw()  # NaN would stay in the vectors when the weights are restored
                if math.isfinite(self._norms.get(name, 0.0)):
                    warn(
                        f"Miyato on layer {name!r}: weights are NaN or infinite. It goes on once "
                        "they are restored."
                    )
            self._norms[name] = norm

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def layer_states(self) -> dict[str, Any]:
        return {name: held.state() for name, held in self._held.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for name, held in self._held.items():
            if name in states:
                held.load(states[name])

    def stop(self) -> None:
        # The last one scales a weight that several layers share: it has to be within all bounds.
        for name in sorted(self._held, key=lambda name: -self._held[name].bound):
            self._held.pop(name).remove()


def _require_a_direction(name: str, layer: FoundLayer) -> None:
    """Zero divided by its norm would be NaN, from the first forward pass on."""
    if not bool(sole_module(layer).weight.any()):
        raise ValueError(
            f"Layer {name!r} has a weight of zeros, which Miyato cannot divide by its norm: start "
            "it with other values, or leave the layer out by max_norm."
        )
