"""Whether a norm has come to its target: short runs may end before a method has done its work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.experiment import Verdict

# How far from the target, as a factor on either side, a norm may end and still be called clipped to
# it. The paper's method itself comes to rest at 1.08 in simple_conv_results.ipynb, the notebook
# published with its code.
CORRECT = 1.1
SETTLED = 0.01
RULE = (
    f"Where norms still come closer to the target by more than {100 * SETTLED:g} % in the last "
    "epoch, nothing is contradicted yet."
)


def off(norm: float) -> float:
    """By which factor a norm is off its target of 1, above or below: 2 and 0.5 are off by 2."""
    return math.exp(abs(math.log(max(norm, 1e-30))))


def unless_still_falling(verdict: Verdict, paths: Sequence[Sequence[float]]) -> Verdict:
    """The verdict, or that it is too early for a contradiction.

    Args:
        verdict: On norms at the end.
        paths: By which factor these are off after each epoch, for each seed.
    """
    steps = [math.log(path[-2] / path[-1]) for path in paths if len(path) > 1]
    if verdict.kind != "contradicted" or not steps:
        return verdict
    fall = sum(steps) / len(steps)
    if fall <= SETTLED:
        return verdict
    still = f"Still falling, by {100 * fall:.1f} % in the last epoch"
    return Verdict("not at this scale", f"{still}. {verdict.reason}")
