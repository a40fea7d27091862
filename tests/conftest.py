from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# The same examples on every run: a failure can be repeated, and time is known beforehand.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240607)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Layers that a test makes on the spot are the same on every run and in any order."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
