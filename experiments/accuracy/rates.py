"""The learning rates of the scale `desk`, as `table_rates` has found them.

They are committed, and not read from the runs: a grid must not change while it is run.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("rates.json")


# In the few steps of a search, FastClip-concat does what FastClip does.
SAME_AS = {"fast_clip_concat": "fast_clip"}


def rate_key(dataset: str, batch_norm: bool, recipe: str, method: str) -> str:
    """What a rate is chosen for: by one recipe, a method has the same with batch norms clipped."""
    plain = method.partition("+bn")[0].partition(":")[0]
    plain = SAME_AS.get(plain, plain)
    return f"{dataset}, {'with' if batch_norm else 'no'} BN, {recipe}: {plain}"


def chosen_rate(key: str) -> float | None:
    """The rate of a key, if there is one yet."""
    return _chosen().get(key)


@cache
def _chosen() -> dict[str, float]:
    found: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
