"""What a method is that keeps norms in check while a model trains, and what one at work is."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spectralclip._models import FoundLayer
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.settings import NamedSettings


class NormWarning(UserWarning):
    """The norms of a layer could not be followed, or not be kept."""


class MethodState(ABC):
    """A method at work on the layers of one model.

    A method may do one or several of three things: move weights after each step of the
    optimizer, add a penalty to the loss, or reparametrize layers until it is stopped. What it
    does not do, it inherits from here.
    """

    @abstractmethod
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        """Do what is due after a step of the optimizer.

        Args:
            step: The number of steps that the optimizer has done since the start, from one.
            bounds: The bound of each layer now. Layers that are not in it stay as they are.
        """

    @abstractmethod
    def norms(self) -> dict[str, float]:
        """The latest norms that the method knows of, by layer. They are estimates."""

    def checked(self) -> dict[str, int]:
        """Which of them were measured on the layer itself, and after which step; by default none.

        The others count as tracked, at the latest step.
        """
        return {}

    def penalty(self) -> Tensor:
        """What to add to the loss, with gradients in the weights; zero by default."""
        return torch.zeros(())

    def layer_states(self) -> dict[str, Any]:
        """By layer, what has to be remembered for a run to go on exactly: tensors and numbers."""
        return {}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on from such states. Those of unknown layers are left aside."""

    def stop(self) -> None:  # noqa: B027
        """Leave plain layers behind: undo reparametrizations, keeping the weights they made.

        It may be called more than once.
        """


class Method(NamedSettings, ABC):
    """A way to keep norms in check, with its settings; one may be attached to many models."""

    @property
    def composes(self) -> bool:
        """Whether a convolution and the batch norm behind it count as one layer."""
        return False

    @property
    def reparametrizes(self) -> bool:
        """Whether layers compute with something else than their weights while it is attached."""
        return False

    @property
    def moves_weights(self) -> bool:
        """Whether it changes weights after a step of the optimizer."""
        return not self.reparametrizes

    @property
    def divides(self) -> bool:
        """Whether processes that train together may each take care of some of the layers."""
        return True

    def takes(self, layer: FoundLayer) -> bool:
        """Whether it is for this layer; by default for all but batch norms and embeddings."""
        others = (nn.modules.batchnorm._BatchNorm, nn.Embedding, nn.EmbeddingBag)
        return not isinstance(layer.modules[0], others)

    @abstractmethod
    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin to work on the layers `sharing.mine()`; weights stay as they are until a step.

        Args:
            sharing: Whose layers these are, and what the optimizer remembers of them.
            bounds: The bound of each layer at the start.
            seed: For the random vectors.
        """


def warn(message: str) -> None:
    """Say something about a layer's norm to the user, with the user's line."""
    warnings.warn(message, NormWarning, stacklevel=2)
