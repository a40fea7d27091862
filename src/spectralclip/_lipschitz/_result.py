"""`NetworkBound`: what is known of a network's Lipschitz constant, and from what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Step:
    """One rule on the way from the input to the output.

    Attributes:
        where: The module at work, or those of an affine chain joined by "+"; "" for the model
            itself.
        operation: What was done.
        factor: By how much distances grow at most in this step.
        bound: By how much they have grown at most since the input; infinite after a place without
            a bound.
        note: What else to know.
    """

    where: str
    operation: str
    factor: float
    bound: float
    note: str = ""


@final
@dataclass(frozen=True)
class Unbounded:
    """A place for which there is no bound.

    Attributes:
        where: The module at work; "" for the model itself.
        operation: What was done.
        reason: Why it has no bound, or why none is known.
    """

    where: str
    operation: str
    reason: str

    def __str__(self) -> str:
        """In one line."""
        return f"{self.where or 'the model'}: {self.operation}: {self.reason}"


@final
@dataclass(frozen=True)
class NetworkBound:
    """An interval that holds the Lipschitz constant of a network, in the l2 norm.

    Attributes:
        lower: The largest norm of the Jacobian that was found next to the example inputs.
        upper: An upper bound; infinite if there is a place without one.
        failure: Probability that the upper end is too small, at most.
        product: The upper bound by the same rules with each layer and batch norm bounded apart.
        unbounded: The places without a bound on which the output depends.
        steps: The rules that led to the upper bound, in order.
        local_norms: The norm of the Jacobian at each example input, from below.
    """

    lower: float
    upper: float
    failure: float
    product: float
    unbounded: tuple[Unbounded, ...] = ()
    steps: tuple[Step, ...] = ()
    local_norms: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """`upper / lower`: how much is left in the dark."""
        if self.lower > 0:
            return self.upper / self.lower
        return 1.0 if self.upper == 0 else math.inf
