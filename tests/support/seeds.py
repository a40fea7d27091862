"""Random weights that are the same on every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's global generator on the CPU begins at this seed; outside, it is as before.

    `torch.manual_seed` would note down the whole stack of calls for each kind of GPU that is not
    there, which took a third of the time of these tests.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
