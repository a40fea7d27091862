"""What methods have in common: a domain, an estimate of the norm, and checks of their settings."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, final, get_type_hints

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._operators import (
    CONVS,
    TRANSPOSED,
    Layer,
    NotAffineError,
    describe,
    is_plain,
    plain_numerics,
)
from spectralclip._training import BatchNorm, Method

DENSE = (nn.Linear,)
WEIGHTED = (*DENSE, *CONVS, *TRANSPOSED)
"""Dense layers, convolutions and transposed ones: what has one weight, linear in it."""

Source: TypeAlias = torch.Generator | None
"""Of random vectors; None for the same in each call."""

_REMEDY = "Leave the layer to another method, such as SpectralClip."


@final
class OutsideDomain(ValueError):
    """A method, or its estimate of a norm, is not defined for a layer.

    Attributes:
        method: The method's name.
        layer: The layer in a few words.
        why: What the method needs, and what the layer has instead.
        remedy: What to do about it, as a sentence.
    """

    def __init__(self, method: str, layer: object, why: str, remedy: str = _REMEDY) -> None:
        self.method, self.why, self.remedy = method, why, remedy
        self.layer = layer if isinstance(layer, str) else describe(layer)
        super().__init__(self.method, self.layer, self.why, self.remedy)

    def __str__(self) -> str:
        return f"{self.method} is not defined for {self.layer}: {self.why}. {self.remedy}"


class DomainMethod(Method):
    """A method that says which layers it is defined for."""

    # The types of layers it is defined for; none where it takes every affine one.
    kinds: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __post_init__(self) -> None:
        """Refuse settings that make no sense: counts below one, numbers that are not positive."""
        for name, kind in get_type_hints(type(self)).items():
            if kind is int:
                check_count(1, **{name: getattr(self, name)})
            elif kind is float:
                check_positive(**{name: getattr(self, name)})

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Why the method is not defined for a layer; empty if it is.

        The layer is a module, a sequence of modules, or a `FoundLayer`; the settings are those that
        `estimate` got.
        """
        return why_not_plain(layer, *cls.kinds) if cls.kinds else ""

    def takes(self, layer: FoundLayer) -> bool:
        """Layers inside the domain; where that is all that is affine, no norms or embeddings."""
        if self.why_not(layer, *layer.in_shapes):
            return False
        return bool(self.kinds) or super().takes(layer)


class EstimatingMethod(DomainMethod):
    """A method that also says what it takes for the norm of a layer in its domain."""

    @classmethod
    @abstractmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """The estimate for a layer inside of the domain; `estimate` checks it."""

    @classmethod
    @plain_numerics()
    def estimate(
        cls, module: Layer, in_shape: Shape, *, generator: Source = None, **settings: Any
    ) -> float:
        """What the method takes for the norm of a layer.

        Args:
            module: The layer.
            in_shape: Shape of one input.
            generator: Source of random vectors, for methods that need some; by default the same
                for each call.
            settings: Of the method's own, such as `power_iterations`, which is by default as many
                as it takes to settle.

        Raises:
            OutsideDomain: The method is not defined for this layer.
            ValueError: Weights or statistics are not finite.
        """
        why = cls.why_not(module, in_shape, **settings)
        if why:
            raise OutsideDomain(cls.__name__, module, why)
        with torch.no_grad():
            norm = cls.norm_of(module, in_shape, generator, **settings)
        if not math.isfinite(norm):
            raise ValueError(
                f"{cls.__name__} has no estimate of the norm of {describe(module)}: its weights "
                "are NaN, infinite or too large. Restore finite ones."
            )
        return norm


@contextmanager
def affine_only(method: str, layer: object) -> Iterator[None]:
    """What is not affine is outside the domain of methods that take every affine layer."""
    try:
        yield
    except NotAffineError as error:  # which names the part to blame, and what to do
        raise OutsideDomain(method, layer, "it takes affine layers", str(error)) from error


def sole_module(layer: object) -> Any:
    """The module of a `FoundLayer`, a module itself, or of a sequence of one; else None."""
    parts = layer.modules if isinstance(layer, FoundLayer) else layer
    if isinstance(parts, Sequence) and not isinstance(parts, str):
        parts = parts[0] if len(parts) == 1 else None
    return parts if isinstance(parts, nn.Module) else None


def why_not_plain(layer: object, *types: type[nn.Module]) -> str:
    """Why a layer is not one of these types with a weight of its own; empty if it is."""
    wanted = ", ".join(kind.__name__ for kind in types)
    module = sole_module(layer)
    if module is None:
        return f"it takes one module of {wanted}, not a composition or a function"
    if not isinstance(module, types):
        return f"it takes {wanted}, not {type(module).__name__}"
    if not is_plain(module, *types):
        return f"it takes {wanted} as they are, without hooks or a forward of their own"
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "its weight is not a parameter of its own, as under a parametrization"
    return ""


def is_batch_norm(layer: object) -> bool:
    """Whether a layer is a batch norm alone with a scale of its own and running statistics."""
    module = sole_module(layer)
    if not isinstance(module, BatchNorm):
        return False
    return isinstance(module.weight, Tensor) and module.running_var is not None


def reshaped_kernel(module: nn.Module, weight: Tensor | None = None) -> Tensor:
    """The weight, or another in its place, as a matrix with a row for each output channel.

    Groups stand one below the other: `(c_out, c_in / groups * taps)`. In a transposed convolution
    the output channels are the second axis, within a group.
    """
    kernel: Tensor = module._parameters["weight"] if weight is None else weight  # type: ignore[assignment]
    if isinstance(module, TRANSPOSED):
        kernel = kernel.transpose(0, 1)
    return kernel.flatten(1)


def check_positive(**settings: float) -> None:
    """Raise unless each setting is a positive finite number."""
    for name, number in settings.items():
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not real or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a positive finite number, got {number!r}.")


def check_count(least: int, **settings: int) -> None:
    """Raise unless each setting is an integer that is large enough."""
    for name, count in settings.items():
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name} must be an integer, got {count!r}.")
        if operator.index(count) < least:
            raise ValueError(f"{name} must be at least {least}, got {count}.")
