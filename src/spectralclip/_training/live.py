"""A layer in training as an operator, with the weights and statistics of the moment."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from spectralclip._operators import (
    AffineFunction,
    LinearOperator,
    build_maps,
    explicit_maps,
    merge,
)


class NonFiniteLayer(ValueError):
    """A layer has weights or statistics of which nothing can be said."""


def live_operator(modules: Sequence[nn.Module], function: AffineFunction) -> LinearOperator:
    """A layer with the weights and statistics that it has now.

    Dense layers, convolutions and batch norms are only read again; any other layer is evaluated at
    zero too.

    Args:
        modules: The layer.
        function: The same, as it was at some time.

    Raises:
        NonFiniteLayer: Its values are not finite, or a variance is not positive.
    """
    try:
        maps = explicit_maps(function)
        if maps is None:
            function = AffineFunction(list(modules), function.in_shape)
            return LinearOperator(function, build_maps(function), transposed=False)
    except ValueError as error:
        raise NonFiniteLayer(str(error)) from error
    return LinearOperator(function, merge(maps), transposed=False)
