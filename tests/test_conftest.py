"""Tests of Ctrl-C do not depend on how the tests themselves were started."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

WAIT = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def in_the_background() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_background", "ctrl_c")
def test_ctrl_c_reaches_what_a_background_job_starts() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with subprocess.Popen(
        [sys.executable, "-c", WAIT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=10) == -signal.SIGINT
        finally:
            process.kill()
