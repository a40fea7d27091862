"""Runs by Ray: on the cluster that `RAY_ADDRESS` names or that runs here, else a Ray of our own.

The process in front stores the results. Every machine needs the sources (see `ray job submit
--working-dir`) and the data, in the same places as here. Checkpoints go below the folder of
results, which the machines have to share if a run is to be taken up on another one.
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import sys
import time
from typing import Any, final

from experiments.engine.work import (
    Done,
    Event,
    Failed,
    Said,
    Task,
    environment,
    error_line,
    now_and_then,
    perform,
)
from spectralclip._common import Problem

_EACH = 1.0  # seconds between two words of a run


class RayMissing(Problem, RuntimeError):
    """Ray is not there."""


@final
class RayEngine:
    """As many runs at a time as the cluster has room for."""

    name = "ray"

    def __init__(self, workers: int | None = None, threads: int = 1, device: str = "cpu") -> None:
        """Connect to a cluster, or start one.

        Args:
            workers: Runs at a time; by default those that there is room for.
            threads: Of each run, that is CPUs.
            device: Of each run; one GPU if it is one.

        Raises:
            RayMissing: Ray is not installed, or there is no cluster at the address given.
        """
        self._ray = _package()
        self._is_ours = _connect(self._ray, workers, threads)
        gpus = int(device.startswith("cuda"))
        self.slots = workers or _room(self._ray, threads, gpus)
        # A run that was lost is ours to repeat, so that it is counted and told.
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": 0}
        self._perform = self._ray.remote(**options)(_perform)
        self._board = self._ray.remote(num_cpus=0)(_Board).remote()
        self._running: dict[Any, str] = {}

    def start(self, task: Task) -> None:
        """Hand the task to Ray."""
        self._running[self._perform.remote(task, self._board, socket.gethostname())] = task.key

    def events(self, seconds: float) -> list[Event]:
        """What has been said, and which runs have ended."""
        if not self._running:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [*self._said(), *(self._ended(one) for one in ready)]

    def close(self) -> None:
        """Stop all that runs; a Ray that we have started ends too."""
        for one in self._running:
            self._ray.cancel(one, force=True)
        self._running.clear()
        if self._is_ours:
            self._ray.shutdown()
        else:
            self._ray.kill(self._board)

    def _ended(self, one: Any) -> Done | Failed:
        key = self._running.pop(one)
        try:
            event: Done | Failed = self._ray.get(one)
        except self._ray.exceptions.RayError as error:
            # The machine or the process is gone, or out of memory.
            return Failed(key, error_line(error), str(error))
        return event

    def _said(self) -> list[Said]:
        try:
            said: dict[str, tuple[float, str]] = self._ray.get(self._board.take.remote())
        except self._ray.exceptions.RayError:
            return []  # only for show
        running = set(self._running.values())
        return [Said(key, *words) for key, words in said.items() if key in running]


class _Board:
    """On which runs write how far they are; it lives in a process of Ray's."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, str]] = {}

    def write(self, key: str, share: float, words: str) -> None:
        self._said[key] = (share, words)

    def take(self) -> dict[str, tuple[float, str]]:
        said, self._said = self._said, {}
        return said


def _perform(task: Task, board: Any, front: str) -> Done | Failed:
    def write(share: float, words: str) -> None:
        board.write.remote(task.key, share, words)

    event = perform(task, now_and_then(write, _EACH))
    # Here the process in front does that, after it has stored the run; elsewhere it cannot.
    if isinstance(event, Done) and socket.gethostname() != front:
        shutil.rmtree(task.scratch, ignore_errors=True)
    return event


def _package() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise RayMissing(
            f'the engine "ray" needs the package ray, which could not be imported ({error}): '
            "pip install ray, or use --engine local."
        ) from error


def _connect(ray: Any, workers: int | None, threads: int) -> bool:
    """Connect to a cluster; returns whether it is one of our own."""
    if ray.is_initialized():
        return False
    given = os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "warning"}
    try:
        ray.init(address=given or "auto", **quiet)
    except ConnectionError as error:
        if given:
            raise RayMissing(
                f"no Ray cluster at RAY_ADDRESS={given} ({error_line(error)}): start one there, "
                "or unset RAY_ADDRESS to use this machine."
            ) from error
        cpus = None if workers is None else workers * threads
        # Its processes are to find the modules that this one does.
        with environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}):
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        return True
    return False


def _room(ray: Any, threads: int, gpus: int) -> int:
    """How many runs the cluster has room for."""
    resources = ray.cluster_resources()
    room = resources.get("CPU", 1) // threads
    return max(1, int(min(room, resources.get("GPU", 0)) if gpus else room))
