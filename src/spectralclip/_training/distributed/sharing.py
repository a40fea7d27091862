"""Who works on which layer: this process alone, or several with the same or sharded weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from spectralclip._models import FoundLayer
from spectralclip._operators import CONVS, TRANSPOSED, Factor, Rows, is_plain
from spectralclip._training.distributed.consensus import Assignment, Report
from spectralclip._training.distributed.process_group import ProcessGroup, portable
from spectralclip._training.distributed.statistics import Statistics
from spectralclip._training.momentum import project_outward_, whole_and_part
from spectralclip._training.optimizers import Optimizers

Moved: TypeAlias = tuple[Sequence[Tensor], Sequence[Tensor]]


class Sharing(ABC):
    """How the work on a model's layers is divided, and its results made known.

    Attributes:
        optimizers: What moves the weights.
        is_alone: Whether there are no other processes to tell what has changed.
    """

    optimizers: Optimizers
    is_alone = False

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

    @abstractmethod
    def found(self) -> Mapping[str, FoundLayer]:
        """Every layer of the model, as it was found."""

    @final
    def moves(self, name: str) -> bool:
        """Whether training moves the layer: a weight of it is not frozen, and an optimizer's.

        A module of one's own has to be trained as a whole: what is frozen in it may not give way.
        """
        return is_trained(self.found()[name], self.weights()[name], self.optimizers.held())

    @final
    def moving(self, index: int | None = None) -> list[str]:
        """The layers that training moves, or that one of the optimizers does."""
        every, held = self.optimizers.held(), self.optimizers.held(index)
        found = self.found()
        return [
            name
            for name, weights in self.weights().items()
            if _one_moves(weights, held) and is_trained(found[name], weights, every)
        ]

    @abstractmethod
    def project_momenta(self, moved: Sequence[Moved]) -> None:
        """Take out of what the optimizer remembers what pushes weights back out, now or later.

        `moved` are equally shaped parameters of `mine`, or views of rows of them, and along what
        each was moved inward.
        """

    @abstractmethod
    def carry_out(self, work: Callable[[], dict[str, Any]], label: str) -> dict[str, Any]:
        """Work on `mine`, and exchange weights and results: all processes end with the same.

        The work changes weights of `mine` in place, and returns a small result by layer; those of
        all layers come back. The label is what is being done, the same in every process.
        """

    @abstractmethod
    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        """What all processes know of their layers, put together."""


@final
class Alone(Sharing):
    """One process, which does everything."""

    is_alone = True

    def __init__(self, layers: Mapping[str, FoundLayer], optimizers: Optimizers) -> None:
        self._layers, self.optimizers = dict(layers), optimizers

    def mine(self) -> Mapping[str, FoundLayer]:
        return self._layers

    def found(self) -> Mapping[str, FoundLayer]:
        return self._layers

    def weights(self) -> Mapping[str, Sequence[Tensor]]:
        return {name: layer.weights() for name, layer in self._layers.items()}

    def project_momenta(self, moved: Sequence[Moved]) -> None:
        """Change what the optimizer remembers, now."""
        project_momenta_(self.optimizers, moved)

    def carry_out(self, work: Callable[[], dict[str, Any]], label: str) -> dict[str, Any]:
        """Work, and return the results."""
        return work()

    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        return by_layer


class Divided(Sharing):
    """Processes that each work on some of the layers, and tell the others what came out."""

    def __init__(
        self, group: ProcessGroup, layers: Mapping[str, FoundLayer], optimizers: Optimizers
    ) -> None:
        self._assignment, self.optimizers = Assignment(group, layers), optimizers
        self._statistics = Statistics(group, layers.values())

    @final
    def found(self) -> Mapping[str, FoundLayer]:
        return self._assignment.layers

    @final
    def merged(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        self._assignment.reach_consensus(Report("state_dict()"))
        return self._assignment.merged(portable(by_layer))


def project_momenta_(optimizers: Optimizers, moved: Sequence[Moved]) -> list[Tensor]:
    """Project the momentum of each parameter that has one, or of its rows; those parameters."""
    momenta, directions, changed = [], [], []
    for parameters, inward in moved:
        places = [whole_and_part(parameter) for parameter in parameters]
        found = [
            (n, m) for n, (whole, _) in enumerate(places) if (m := optimizers.momentum_of(whole))
        ]
        if found:
            directions.append([inward[n] for n, _ in found])
            momenta.append([momentum.within(places[n][1]) for n, momentum in found])
            changed += [places[n][0] for n, _ in found]
    if momenta:
        project_outward_(momenta, directions)
    return changed


def held_of(layer: FoundLayer) -> list[Tensor]:
    """The weights of a layer; of those that it has a part of alone, that part."""
    with torch.no_grad():
        if isinstance(layer.modules[0], Rows):
            return [layer.modules[0].weight]
        factors = [part for part in layer.modules if isinstance(part, Factor)]
        return [view for factor in factors for view in factor.views()] or layer.weights()


def is_trained(layer: FoundLayer, weights: Sequence[Tensor], held: set[int] | None) -> bool:
    """Whether training moves enough of a layer for it to be held.

    Of dense layers, convolutions and batch norms one weight is enough, which gives way alone. Of
    others, such as a module of one's own or the product of two projections, all have to.
    """
    if all(
        is_plain(part, nn.Linear, Rows, *CONVS, *TRANSPOSED) or _is_norm(part)
        for part in layer.modules
    ):
        return _one_moves(weights, held)
    return bool(weights) and all(_one_moves([weight], held) for weight in weights)


def _is_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._BatchNorm)


def why_left(layer: FoundLayer, weights: Sequence[Tensor], optimizers: Optimizers) -> str:
    """Why a layer that training does not move, or not all of, is left as it is."""
    if not any(weight.requires_grad for weight in weights):
        return "frozen"
    if not _one_moves(weights, optimizers.held()):
        return f"not among the parameters of {optimizers.names}"
    names = {id(p): n for part in layer.modules for n, p in part.named_parameters()}
    rest = [w for w in weights if not _one_moves([w], optimizers.held())]
    listed = ", ".join(repr(names.get(id(weight), "a part")) for weight in rest)
    return f"trained in part: {listed} would have to give way too"


def is_moved(weight: Tensor, optimizers: Optimizers) -> bool:
    """Whether a weight is not frozen, and an optimizer's."""
    return _one_moves([weight], optimizers.held())


def _one_moves(weights: Iterable[Tensor], held: set[int] | None) -> bool:
    return any(w.requires_grad and (held is None or id(w) in held) for w in weights)
