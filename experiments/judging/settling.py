"""Whether a norm has come to its target: short runs may end before a method has done its work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from experiments.experiment import Config, Record, Verdict, VerdictKind

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
    f"epoch, or training has fewer than {ENOUGH_STEPS:,} steps, nothing is held against a method "
    "yet (the steps, and that it goes for all methods, were added after runs of ResNet-18)."
)


def off(norm: float) -> float:
    """By which factor a norm is off its target of 1, above or below: 2 and 0.5 are off by 2."""
    return math.exp(abs(math.log(max(norm, 1e-30))))


def too_early(method: str, records: Sequence[Record], paths: Sequence[Sequence[float]]) -> str:
    """Why the runs of a method cannot be held against it yet; empty where they can.

    Args:
        method: As it is named.
        records: Its runs.
        paths: By which factor norms are off after each epoch, for each seed.
    """
    shortest = min((_steps(record.config) for record in records), default=math.inf)
    if shortest < ENOUGH_STEPS:
        return f"Only {shortest:,} steps of training with {method}. "
    falls = [math.log(path[-2] / path[-1]) for path in paths if len(path) > 1]
    fall = sum(falls) / len(falls) if falls else 0.0
    if fall > SETTLED:
        return f"{method} still falls, by {100 * fall:.1f} % in the last epoch. "
    return ""


def unless(verdict: Verdict, kind: VerdictKind, early: str) -> Verdict:
    """The verdict, but that one of this kind is too early where there is a reason."""
    if verdict.kind != kind or not early:
        return verdict
    return replace(verdict, kind="not at this scale", reason=early + verdict.reason)


def _steps(config: Config) -> float:
    """How many steps of training a run has; all images of a data set are more than enough."""
    images = config["train_images"]
    return math.inf if images is None else config["epochs"] * -(-images // config["batch"])
