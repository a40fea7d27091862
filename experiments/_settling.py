"""Short runs may end before a method has done its work: these prove nothing against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.experiment import Verdict

SETTLED = 0.01
RULE = (
    f"Where norms still fall by more than {100 * SETTLED:g} % in the last epoch, nothing is "
    "contradicted yet."
)


def unless_still_falling(verdict: Verdict, paths: Sequence[Sequence[float]]) -> Verdict:
    """The verdict, or that it is too early for a contradiction.

    Args:
        verdict: On norms at the end.
        paths: These norms after each epoch, for each seed.
    """
    steps = [math.log(path[-2] / path[-1]) for path in paths if len(path) > 1]
    if verdict.kind != "contradicted" or not steps:
        return verdict
    fall = sum(steps) / len(steps)
    if fall <= SETTLED:
        return verdict
    still = f"Still falling, by {100 * fall:.1f} % in the last epoch"
    return Verdict("not at this scale", f"{still}. {verdict.reason}")
