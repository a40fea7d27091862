"""An interval around a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True)
class Interval:
    """A lower and an upper bound on a norm.

    Attributes:
        lower: Lower end.
        upper: Upper end.
        kind: What the upper end rests on: "exact", "embedding", "every size", "cholesky",
            "factors" (all deterministic), or "probabilistic".
        failure: Probability that the upper end is too small; 0 for deterministic kinds.
        num_matvecs: Vectors sent through the layer or its transpose, one each.

    Example:
        >>> from spectralclip import Interval
        >>> interval = Interval(2.0, 2.02, "embedding", 0.0)
        >>> 2.01 in interval, round(interval.width, 4)
        (True, 0.01)
    """

    lower: float
    upper: float
    kind: str
    failure: float
    num_matvecs: int = 0

    def __contains__(self, value: float | Tensor) -> bool:
        """Whether a number lies between the ends."""
        return self.lower <= float(value) <= self.upper

    @property
    def width(self) -> float:
        """Relative width: `upper / lower - 1`."""
        if self.lower > 0:
            return self.upper / self.lower - 1
        return 0.0 if self.upper == 0 else math.inf
