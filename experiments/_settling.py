"""Whether a norm has come to its target: short runs may end before a method has done its work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.experiment import Config, Record, Verdict

# How far from the target, as a factor on either side, a norm may end and still be called clipped to
# it. The paper's method itself comes to rest at 1.08 in simple_conv_results.ipynb, the notebook
# published with its code.
CORRECT = 1.1
SETTLED = 0.01
# A method that lowers one value every 50 or 100 steps takes more than a thousand to be done with a
# new layer.
ENOUGH_STEPS = 1000
RULE = (
    f"Where norms still come closer to the target by more than {100 * SETTLED:g} % in the last "
    f"epoch, or training has fewer than {ENOUGH_STEPS:,} steps, nothing is contradicted yet."
)


def off(norm: float) -> float:
    """By which factor a norm is off its target of 1, above or below: 2 and 0.5 are off by 2."""
    return math.exp(abs(math.log(max(norm, 1e-30))))


def unless_too_early(
    verdict: Verdict, records: Sequence[Record], paths: Sequence[Sequence[float]]
) -> Verdict:
    """The verdict, or that it is too early for a contradiction.

    Args:
        verdict: On norms at the end.
        records: The runs that it is about.
        paths: By which factor norms are off after each epoch, for each seed.
    """
    if verdict.kind != "contradicted":
        return verdict
    shortest = min((_steps(record.config) for record in records), default=math.inf)
    falls = [math.log(path[-2] / path[-1]) for path in paths if len(path) > 1]
    fall = sum(falls) / len(falls) if falls else 0.0
    if shortest < ENOUGH_STEPS:
        early = f"Only {shortest:,} steps of training"
    elif fall > SETTLED:
        early = f"Still falling, by {100 * fall:.1f} % in the last epoch"
    else:
        return verdict
    return Verdict("not at this scale", f"{early}. {verdict.reason}")


def _steps(config: Config) -> float:
    """How many steps of training a run has; all images of a data set are more than enough."""
    images = config["train_images"]
    return math.inf if images is None else config["epochs"] * -(-images // config["batch"])
