"""Who works on which layer: this process alone, or several with the same or sharded weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, final

from torch import Tensor
from torch.optim import Optimizer

from spectralclip._layers import FoundLayer
from spectralclip._momentum import Momentum, momentum_of

Strip: TypeAlias = Callable[[Momentum], None]


class Sharing(ABC):
    """How the work on a model's layers is divided, and its results made known."""

    @abstractmethod
    def mine(self) -> Mapping[str, FoundLayer]:
        """The layers that this process works on, with plain and whole weights.

        Where the model's own weights are sharded, the modules are stand-ins for the model's.
        """

    @abstractmethod
    def moves(self, name: str) -> bool:
        """Whether training moves the layer: a weight of it is not frozen, and the optimizer's."""

    @abstractmethod
    def strip(self, parameter: Tensor, strip: Strip) -> None:
        """Change what the optimizer remembers of a parameter of one of `mine`, now or later."""

    @abstractmethod
    def carry_out(
        self, work: Callable[[], dict[str, Any]], label: str = "a step"
    ) -> dict[str, Any]:
        """Work on `mine`, and exchange weights and results: all processes end with the same.

        Args:
            work: Changes weights of `mine` in place, and returns a small result by layer.
            label: What is being done, the same in every process.

        Returns:
            The results of all layers.
        """

    @abstractmethod
    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        """What all processes know of their layers, put together."""


@final
class Alone(Sharing):
    """One process, which does everything."""

    def __init__(self, layers: Mapping[str, FoundLayer], optimizer: Optimizer | None) -> None:
        self._layers, self._optimizer = dict(layers), optimizer

    def mine(self) -> Mapping[str, FoundLayer]:
        """All layers."""
        return self._layers

    def moves(self, name: str) -> bool:
        """Whether a weight of the layer is not frozen, and the optimizer's."""
        return is_moved(self._layers[name], self._optimizer)

    def strip(self, parameter: Tensor, strip: Strip) -> None:
        """Change what the optimizer remembers, now."""
        momentum = None if self._optimizer is None else momentum_of(self._optimizer, parameter)
        if momentum is not None:
            strip(momentum)

    def forget(self, parameter: Tensor) -> None:
        """Drop all that the optimizer remembers of a parameter, whose shape has changed."""
        if self._optimizer is not None:
            self._optimizer.state.pop(parameter, None)

    def carry_out(
        self, work: Callable[[], dict[str, Any]], label: str = "a step"
    ) -> dict[str, Any]:
        """Work, and return the results."""
        return work()

    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        """What this process knows is all there is."""
        return by_layer


def is_moved(layer: FoundLayer, optimizer: Optimizer | None) -> bool:
    """Whether the optimizer moves a weight of the layer."""
    return are_moved(weights_of(layer), optimizer)


def weights_of(layer: FoundLayer) -> list[Tensor]:
    """The parameters of a layer, apart from its offset."""
    return [
        parameter
        for module in layer.modules
        for name, parameter in module.named_parameters()
        if not name.endswith("bias")
    ]


def are_moved(weights: Iterable[Tensor], optimizer: Optimizer | None) -> bool:
    """Whether one of the weights is not frozen, and the optimizer's if there is one."""
    free = [weight for weight in weights if weight.requires_grad]
    if optimizer is None:
        return bool(free)
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(weight) in known for weight in free)
