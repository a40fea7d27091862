"""A layer whose weight is parametrized, with the weight as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectralclip._common import Shape
from spectralclip._operators import (
    AffineFunction,
    LinearOperator,
    evaluation_mode,
    is_linear_in,
    operator_at,
)

_SLOTS = ("__dict__", "__weakref__")


def make_plain_(module: nn.Module, name: str, order: Sequence[str]) -> None:
    """Remove a parametrization, leaving the weight that it makes in evaluation.

    Args:
        module: Parametrized.
        name: Of the weight.
        order: The names of the module's own parameters as they were before.
    """
    kind = type(module)
    # Copies of the module share the class that torch made of it, and would lose their weight
    # along with it.
    own = {key: value for key, value in vars(kind).items() if key not in _SLOTS}
    module.__class__ = type(kind.__name__, kind.__bases__, own)
    with evaluation_mode([module]):
        parametrize.remove_parametrizations(module, name)
    # In the order of before, since optimizers number parameters by it.
    table = module._parameters
    for key in [*order, *(key for key in list(table) if key not in order)]:
        if key in table:
            table[key] = table.pop(key)


def scales_with(module: nn.Module, in_shape: Shape, name: str) -> bool:
    """Whether the layer is linear in the weight of that name: twice the weight is twice the layer.

    True as well of a layer that cannot be evaluated, as with NaN among its weights: who goes on to
    use it will say so better.
    """
    try:
        function = AffineFunction([module], in_shape)
    except ValueError:
        return True
    return is_linear_in(function, [function.stages[0].parameters[name]], homogeneous=True)


@final
class BareLayer:
    """The layer `M(W)` for a weight W that the module itself no longer uses as it is.

    Attributes:
        is_bare: Whether the parametrization is to hand the weight on unchanged.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self._name, self.is_bare = module, name, False
        self._order = list(module._parameters)
        self._functions: dict[object, AffineFunction] = {}

    @property
    def weight(self) -> Tensor:
        """The parameter itself."""
        module: Any = self.module
        if self.is_parametrized:
            weight: Tensor = module.parametrizations[self._name].original
            return weight
        return module._parameters[self._name]  # type: ignore[no-any-return]

    def operator(self, shape: Shape) -> LinearOperator:
        """The layer as it is now; of a plain one only the weight is read again."""
        weight = self.weight
        key = shape, weight.dtype, weight.device, self.is_parametrized
        with self._bare(), evaluation_mode([self.module]):
            if key not in self._functions:
                self._functions[key] = AffineFunction([self.module], shape)
            return operator_at(self._functions[key])

    def pullback(self, op: LinearOperator, u: Tensor, v: Tensor) -> Tensor:
        """The gradient of `<u, M(W) v>` in W."""
        weight = self.weight
        names = [name for name, one in op.function.parameters.items() if one is weight]
        with self._bare():
            return op.pullback(u, v)[names[0]]

    @property
    def is_parametrized(self) -> bool:
        """Whether the weight is made by a parametrization."""
        return parametrize.is_parametrized(self.module, self._name)

    def make_plain_(self) -> None:
        """Remove the parametrization, leaving the weight that it makes."""
        make_plain_(self.module, self._name, self._order)

    @contextmanager
    def _bare(self) -> Iterator[None]:
        before, self.is_bare = self.is_bare, True
        try:
            yield
        finally:
            self.is_bare = before
