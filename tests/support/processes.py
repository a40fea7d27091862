"""A few processes that live as long as a fixture, and run functions together over gloo."""

from __future__ import annotations

import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

PATIENCE = 120  # seconds; what takes longer hangs


class Processes:
    """Starting a process takes longer than most tests do."""

    def __init__(self, size: int) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        pipes = [context.Pipe() for _ in range(size)]
        self._ends = [here for here, _ in pipes]
        self._workers = [
            context.Process(target=_work, args=(rank, size, store, there), daemon=True)
            for rank, (_, there) in enumerate(pipes)
        ]
        for worker in self._workers:
            worker.start()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What a function, given by its name in a module, returns in each process."""
        for end in self._ends:
            end.send_bytes(pickle.dumps((function, args)))  # not by sharing memory
        answers = []
        for rank, end in enumerate(self._ends):
            if not end.poll(PATIENCE):
                self.close()
                raise AssertionError(f"{function.__name__} hangs in process {rank}.")
            answers.append(pickle.loads(end.recv_bytes()))
        for rank, (fine, answer) in enumerate(answers):
            assert fine, f"{function.__name__} failed in process {rank}:\n{answer}"
        return [answer for _, answer in answers]

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()
        self._folder.cleanup()


def _work(rank: int, size: int, store: str, end: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        function, args = pickle.loads(end.recv_bytes())
        try:
            torch.manual_seed(0)
            answer = (True, function(*args))
        except BaseException:
            answer = (False, traceback.format_exc())
        end.send_bytes(pickle.dumps(answer))
