from __future__ import annotations

import gc
import os
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is imported. What tests start, and the workers of pytest-xdist, inherit it.
_AMX = Path(__file__).parents[1] / "src" / "spectralclip" / "_common" / "amx.py"
os.environ.update(runpy.run_path(str(_AMX))["needed"]())

import torch  # noqa: E402

# A third of the time of collection goes into looking for garbage among what is there to stay.
gc.disable()

# The same examples on every run: a failure can be repeated, and time is known beforehand.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with many cases, marked `sampled(n)`, all but every n-th are slow."""
    seen: dict[str, int] = {}
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None:
            continue
        name = item.nodeid.partition("[")[0]
        place = seen[name] = seen.get(name, -1) + 1
        if place % marker.args[0]:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240607)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Layers that a test makes on the spot are the same on every run and in any order."""
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would take a third of the time of all tests: see support/seeds.py.
        torch.default_generator.manual_seed(0)
        yield


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT as at a terminal, for this process and for those that the test starts.

    A job in the background, or under `nohup`, is started with SIGINT ignored, and Python leaves it
    so; so do its children. A handler of ours is not inherited: they begin with the default.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
