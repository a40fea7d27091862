"""What is known of a network's Lipschitz constant, and from what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from spectralclip._lipschitz.flow import SWITCH


@final
@dataclass(frozen=True)
class Step:
    """One rule on the way from the input to the output."""

    where: str  # the module at work, or those of a chain joined by "+"; "" for the model itself
    operation: str  # what was done
    factor: float  # by how much distances grow at most in this step
    bound: float  # the same since the input; infinite after a place without a bound
    note: str = ""  # what else to know


@final
@dataclass(frozen=True)
class Unbounded:
    """A place for which there is no bound."""

    where: str  # the module at work; "" for the model itself
    operation: str  # what was done
    reason: str  # why it has no bound, or why none is known

    def __str__(self) -> str:
        return f"{self.where or 'the model'}: {self.operation}: {self.reason}"


_FEW, _WIDTH = 6, 100  # places that are printed of each kind, and signs on a line


@final
@dataclass(frozen=True, repr=False)
class NetworkBound:
    """An interval that holds the Lipschitz constant of a network, in the l2 norm.

    Printed, it is a summary: the ends, the first places without a bound, and the steepest steps.

    Attributes:
        lower: The largest norm of the Jacobian that was found next to the example inputs.
        upper: An upper bound; infinite if there is a place without one.
        failure: Probability that the upper end is too small, at most.
        product: The upper bound by the same rules with each layer and batch norm bounded apart.
        unbounded: The places without a bound on which the output depends. Each says `where` it
            is (the module at work, "" for the model itself), which `operation`, and the `reason`.
        steps: The rules that led to the upper bound, in order. Each says `where`, which
            `operation`, the `factor` and the `bound` so far on how distances grow, and a `note`.
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
    def decisions(self) -> tuple[str, ...]:
        """The modules that decide by their input, "" for the model itself.

        The bound holds on inputs that take the same way through the model as one of the examples.
        """
        return tuple(dict.fromkeys(one.where for one in self.steps if one.note == SWITCH))

    @property
    def ratio(self) -> float:
        """`upper / lower`: how much is left in the dark."""
        if self.lower > 0:
            return self.upper / self.lower
        return 1.0 if self.upper == 0 else math.inf

    def __repr__(self) -> str:
        return (
            f"NetworkBound(lower={self.lower:.6g}, upper={self.upper:.6g}, "
            f"failure={self.failure:.3g}, product={self.product:.6g}, "
            f"unbounded=<{len(self.unbounded)}>, steps=<{len(self.steps)}>, "
            f"local_norms=<{len(self.local_norms)}>)"
        )

    def __str__(self) -> str:
        lines = [f"Lipschitz constant: at least {self.lower:.6g}, {self._above()}"]
        lines += _listed("no bound at", [str(place) for place in self.unbounded], "unbounded")
        ways = [f"{where or 'the model'}, which decides by its input" for where in self.decisions]
        lines += _listed("only for the way taken at", ways, "decisions")
        steep = [step for step in self.steps if 1 < step.factor < math.inf]
        steep.sort(key=lambda step: -step.factor)
        told = [f"{one.where or 'the model'}: {one.operation}: {one.factor:.4g}" for one in steep]
        lines += _listed("growth at", told, "steps")
        cut = [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines]
        return "\n".join(cut)

    def _above(self) -> str:
        if math.isinf(self.upper):
            return "no upper bound"
        sure = f", but for a probability of {self.failure:.2g}" if self.failure else ""
        return f"at most {self.upper:.6g}{sure} (each layer apart: {self.product:.6g})"


def _listed(title: str, items: list[str], attribute: str) -> list[str]:
    """The first of some items, one a line, and how many there are besides."""
    lines = [f"  {title} " + " ".join(item.split()) for item in items[:_FEW]]
    more = len(items) - _FEW
    return [*lines, f"  and {more} more, in .{attribute}"] if more > 0 else lines
