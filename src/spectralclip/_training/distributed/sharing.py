"""Who works on which layer: this process alone, or several with the same or sharded weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

from torch import Tensor

from spectralclip._models import FoundLayer
from spectralclip._training.momentum import Momentum
from spectralclip._training.optimizers import Optimizers

Projection: TypeAlias = Callable[[Momentum], None]


class Sharing(ABC):
    """How the work on a model's layers is divided, and its results made known.

    Attributes:
        optimizers: What moves the weights.
    """

    optimizers: Optimizers

    @abstractmethod
    def mine(self) -> Mapping[str, FoundLayer]:
        """The layers that this process works on, with plain and whole weights.

        Where the model's own weights are sharded, the modules are stand-ins for the model's.
        """

    @abstractmethod
    def weights(self) -> Mapping[str, Sequence[Tensor]]:
        """The parameters of every layer of the model, apart from offsets, as optimizers know them.

        Those of layers that other processes work on are among them.
        """

    @final
    def moves(self, name: str) -> bool:
        """Whether training moves the layer: a weight of it is not frozen, and an optimizer's."""
        return are_moved(self.weights()[name], self.optimizers)

    @final
    def moving(self, index: int | None = None) -> list[str]:
        """The layers that training moves, or that one of the optimizers does."""
        held = self.optimizers.held(index)
        return [name for name, weights in self.weights().items() if _one_moves(weights, held)]

    @abstractmethod
    def project_momentum(self, parameter: Tensor, project: Projection) -> None:
        """Change what the optimizer remembers of a parameter of one of `mine`, now or later.

        Args:
            parameter: The parameter.
            project: Called with its momentum: a `buffer`, to be changed in place, and the `metric`
                that its entries are multiplied with in a step, or None.
        """

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

    def __init__(self, layers: Mapping[str, FoundLayer], optimizers: Optimizers) -> None:
        self._layers, self.optimizers = dict(layers), optimizers

    def mine(self) -> Mapping[str, FoundLayer]:
        return self._layers

    def weights(self) -> Mapping[str, Sequence[Tensor]]:
        return {name: weights_of(layer) for name, layer in self._layers.items()}

    def project_momentum(self, parameter: Tensor, project: Projection) -> None:
        """Change what the optimizer remembers, now."""
        momentum = self.optimizers.momentum_of(parameter)
        if momentum is not None:
            project(momentum)

    def carry_out(
        self, work: Callable[[], dict[str, Any]], label: str = "a step"
    ) -> dict[str, Any]:
        """Work, and return the results."""
        return work()

    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        return by_layer


def weights_of(layer: FoundLayer) -> list[Tensor]:
    """The parameters of a layer, apart from its offset."""
    return [
        parameter
        for module in layer.modules
        for name, parameter in module.named_parameters()
        if not name.endswith("bias")
    ]


def are_moved(weights: Iterable[Tensor], optimizers: Optimizers) -> bool:
    """Whether one of the weights is not frozen, and is moved by an optimizer."""
    return _one_moves(weights, optimizers.held())


def _one_moves(weights: Iterable[Tensor], held: set[int] | None) -> bool:
    return any(w.requires_grad and (held is None or id(w) in held) for w in weights)
