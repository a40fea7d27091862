from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import Processes


@pytest.fixture(scope="session")
def pair() -> Iterator[Processes]:
    """Two processes for all files here: starting them takes longer than most tests do."""
    processes = Processes(2)
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Processes]:
    processes = Processes(4)
    yield processes
    processes.close()
