"""Runs beside each other, where nothing is timed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from experiments.engine.local import KEEPING_MEMORY, end_with_parent
from experiments.engine.work import environment

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


def outcomes(
    function: Callable[[Task], Outcome], tasks: Sequence[Task], processes: int
) -> Iterator[Outcome]:
    """What the function makes of each task, as it comes, from processes of one thread each."""
    context = multiprocessing.get_context("spawn")
    with environment(KEEPING_MEMORY), context.Pool(processes, initializer=_begin) as pool:
        yield from pool.imap_unordered(function, tasks)


def _begin() -> None:
    torch.set_num_threads(1)
    end_with_parent()
