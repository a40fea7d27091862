"""What a method is that keeps norms in check while a model trains, and its state at work."""

from __future__ import annotations

import math
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spectralclip._linalg import testable
from spectralclip._models import Compose, FoundLayer
from spectralclip._operators import AffineFunction, LinearOperator, Rows, operator_at
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.promise import Promise
from spectralclip._training.settings import NamedSettings


class NormWarning(UserWarning):
    """The norms of a layer could not be followed, or not be kept."""


class MethodState(ABC):
    """A method at work on the layers of one model: what `Method.start` returns.

    `after_step` is all that has to be written. A method may move weights after each step of the
    optimizer, add a `penalty` to the loss, or reparametrize layers until `stop`. What a run has to
    remember goes into `layer_states` and `load_layer_states`.

    Attributes:
        method: The method, with its settings.
        sharing: Which layers training moves, and how processes share the work on them.
        layers: The layers that this process works on, by name.
        seed: Where its random numbers come from.
    """

    def __init__(self, method: Method, sharing: Sharing, seed: int = 0) -> None:
        """Begin to work on the layers `sharing.mine()`."""
        self.method, self.sharing, self.seed = method, sharing, seed
        self.layers: dict[str, FoundLayer] = dict(sharing.mine())
        self._norms: dict[str, float] = {}
        self._functions: dict[str, list[AffineFunction]] = {}

    @abstractmethod
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        """Do what is due after a step of the optimizer.

        Args:
            step: The number of steps that the optimizer has done since the start, from one.
            bounds: The bound of each layer now. Layers that are not in it stay as they are.
        """

    def norms(self) -> dict[str, float]:
        """The latest norms, by layer: by default those that `record` was told. Estimates."""
        return dict(self._norms)

    def known_norms(self) -> dict[str, float]:
        """What is known of norms after each step without measuring again, which others are told."""
        return self.norms()

    def record(self, name: str, norm: float, trouble: str = "") -> None:
        """Take note of a layer's norm; where it is not finite, warn until it is again, once.

        Args:
            name: The layer.
            norm: Its norm after this step.
            trouble: What to say in place of the usual words.
        """
        if not math.isfinite(norm) and math.isfinite(self._norms.get(name, 0.0)):
            usual = (
                "its weights or statistics are NaN, infinite or too large. It is left as it is "
                "until they are restored, as by loading a checkpoint."
            )
            warn(f"{type(self.method).__name__} on layer {name!r}: {trouble or usual}")
        self._norms[name] = norm

    def operators(self, name: str) -> list[LinearOperator]:
        """A layer with the weights and statistics that it has now, for each of its input shapes.

        Raises:
            ValueError: They are such that nothing can be said, as a negative variance.
        """
        layer = self.layers[name]
        if name not in self._functions:
            shapes = layer.in_shapes
            self._functions[name] = [AffineFunction(layer.modules, shape) for shape in shapes]
        return [operator_at(one) for one in self._functions[name]]

    def generator(self, *origin: object) -> torch.Generator:
        """A source of random numbers that depends on the seed and on what is given here alone.

        So they are the same whichever process works on a layer, and after a restart.
        """
        return seeded(", ".join(map(str, (self.seed, *origin))))

    def checked(self) -> dict[str, int]:
        """Which norms were measured on the layer itself, and after which step; by default none.

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
    """A way to keep norms in check, with its settings; one may be attached to many models.

    `start` is all that has to be written; the other answers have defaults.
    """

    promises = tuple[Promise, ...]()  # what it can be held to

    @property
    def compose(self) -> Compose | Literal["heads"]:
        """Which layers it holds as one, in the words of `find_layers`; by default each alone.

        With "heads", the products of attention heads in place of their projections.
        """
        return "none"

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
        """Whether processes that train together may each work on some of the layers."""
        return not self.reparametrizes

    def takes(self, layer: FoundLayer) -> bool:
        """Whether it is for this layer; by default not for batch norms, embeddings and `Rows`.

        What scales or replaces a parameter would do so to all of its rows.
        """
        others = (nn.modules.batchnorm._BatchNorm, nn.Embedding, nn.EmbeddingBag, Rows)
        return not isinstance(layer.modules[0], others)

    def for_network(self) -> Method:
        """The same method where the network as a whole is to be bounded; by default itself."""
        return self

    @abstractmethod
    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin to work on the layers `sharing.mine()`; weights stay as they are until a step.

        Args:
            sharing: Which layers there are, and how processes share the work on them.
            bounds: The bound of each layer at the start.
            seed: For the random vectors.
        """


def warn(message: str) -> None:
    """Say something about a layer's norm to the user, with the user's line."""
    warnings.warn(message, NormWarning, stacklevel=2)


def seeded(origin: str) -> torch.Generator:
    """A generator that depends on a text alone, whichever process asks."""
    return torch.Generator("cpu").manual_seed(zlib.crc32(origin.encode()))


def name_non_finite(method: Method, layers: Mapping[str, FoundLayer], error: ValueError) -> None:
    """Say by its name which layer a method could not start on; methods know the module alone."""
    for name, layer in layers.items():
        for module in layer.modules:
            for own, tensor in (*module.named_parameters(), *module.named_buffers()):
                if tensor.is_floating_point() and not bool(torch.isfinite(testable(tensor)).all()):
                    raise ValueError(
                        f"{type(method).__name__} cannot start on layer {name!r}: its {own!r} "
                        "holds NaN or infinite values. Restore finite ones, or leave the layer "
                        "out by max_norm."
                    ) from error
