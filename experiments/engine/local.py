"""Runs by processes on this machine, each of which does one after the other.

A process that dies, as by a lack of memory, takes its run with it and nothing else: a new one is
started for the next. All of them end with the process that has started them.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import final

from experiments.engine.device import require_device
from experiments.engine.work import Event, Failed, Said, Task, environment, now_and_then, perform

_GPUS = "CUDA_VISIBLE_DEVICES"
_PATIENCE = 5.0  # seconds that a process has to end
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# The C library of Linux gives the memory of large tensors back to the system when they are freed,
# and asks for it again. A step of ResNet-18 (width 8, 64 images) had 4,700 page faults from that,
# which took 12 of its 90 ms. Told to keep the memory, it has none.
KEEPING_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


@final
class LocalEngine:
    """At most so many processes at a time, with so many threads each, or with a GPU each."""

    name = "local"

    def __init__(self, workers: int | None = None, threads: int = 1, device: str = "cpu") -> None:
        """Nothing is started before there is a task.

        Args:
            workers: Processes; by default as many as there are cores for their threads, or GPUs.
            threads: Of each of them.
            device: Of each of them; with "cuda" they divide the GPUs among them.

        Raises:
            ValueError: There is no such GPU.
        """
        self._gpus = _gpus(device)
        self.slots = workers or len(self._gpus) or max(1, _cores() // threads)
        self._threads = threads
        self._workers: list[_Worker] = []

    def start(self, task: Task) -> None:
        """Give the task to a process that has none, or to a new one."""
        idle = [worker for worker in self._workers if worker.task is None]
        worker = idle[0] if idle else self._new()
        worker.task = task
        # One that was killed while idle is noticed when its end is read from.
        with contextlib.suppress(OSError):
            worker.end.send(task)

    def events(self, seconds: float) -> list[Event]:
        """What the processes have said, and which have died."""
        busy = {worker.end: worker for worker in self._workers if worker.task is not None}
        if not busy:
            time.sleep(seconds)
            return []
        ready = multiprocessing.connection.wait(list(busy), timeout=seconds)
        return [self._event(worker) for end, worker in busy.items() if end in ready]

    def close(self) -> None:
        """End all processes; their runs can be taken up from their checkpoints."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.dismiss()
        self._workers.clear()

    def _new(self) -> _Worker:
        taken = [worker.gpu for worker in self._workers]
        worker = _Worker(self._threads, min(self._gpus, key=taken.count, default=None))
        self._workers.append(worker)
        return worker

    def _event(self, worker: _Worker) -> Event:
        assert worker.task is not None
        try:
            event: Event = worker.end.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            line = worker.dismiss()
            return Failed(worker.task.key, line, line)
        if not isinstance(event, Said):
            worker.task = None
        return event


@final
class _Worker:
    """A process, the end of the pipe to it, and what it does."""

    def __init__(self, threads: int, gpu: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.task: Task | None = None
        self.gpu = gpu
        self.end, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there,), name="experiments worker")
        # Libraries read this once, when they are loaded.
        visible = {} if gpu is None else {_GPUS: gpu}
        with environment({**dict.fromkeys(_POOLS, str(threads)), **KEEPING_MEMORY, **visible}):
            self.process.start()
        there.close()  # so that the pipe ends when the process does

    def dismiss(self) -> str:
        """See that the process has ended, and say how."""
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        self.end.close()
        self.process.close()
        if code is not None and code < 0:
            return f"the process was killed by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"


def _serve(end: Connection) -> None:
    """What a process does."""
    # Ctrl-C reaches the whole group: the process in front decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    while True:
        try:
            task: Task = end.recv()
        except EOFError:
            return
        say = now_and_then(functools.partial(_tell, end, task.key))
        with _output_to(task.log):
            event = perform(task, say)
        end.send(event)


def _tell(end: Connection, key: str, share: float, words: str) -> None:
    end.send(Said(key, share, words))


def end_with_parent() -> None:
    """Have this process end when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Let a file have what is printed, by libraries in C too: the terminal shows the progress."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    kept = [os.dup(1), os.dup(2)]
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, handle in enumerate(kept, 1):
            os.dup2(handle, number)
            os.close(handle)
        os.close(file)


def _gpus(device: str) -> list[str]:
    """What the driver calls the GPUs to be divided; a device of its own number is left to torch."""
    if not device.startswith("cuda"):
        return []
    import torch

    require_device(device)
    count = torch.cuda.device_count()
    if device != "cuda":
        return [",".join(_visible(count))]  # all of them, for one process
    return _visible(count)


def _visible(count: int) -> list[str]:
    given = os.environ.get(_GPUS, "").split(",")
    named = [name.strip() for name in given if name.strip()]
    return named[:count] or [str(number) for number in range(count)]


def _cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
