"""A layer in training as an operator, with the weights and statistics of the moment."""

from __future__ import annotations

from spectralclip._operators import AffineFunction, LinearOperator, operator_at


class NonFiniteLayer(ValueError):
    """A layer has weights or statistics of which nothing can be said."""


def live_operator(function: AffineFunction) -> LinearOperator:
    """A layer with the weights and statistics that it has now.

    Raises:
        NonFiniteLayer: Its values are not finite, or a variance is not positive.
    """
    try:
        return operator_at(function)
    except ValueError as error:
        raise NonFiniteLayer(str(error)) from error
