"""Who examines which layer: one process after the other, several at once, or ranks together."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from math import prod
from multiprocessing import get_context
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from spectralclip._audit.examine import Findings, Request, examine
from spectralclip._common import Shape, Steps
from spectralclip._models import gathered, sharded_modules

Workers: TypeAlias = int | Literal["ranks"]


class Job(NamedTuple):
    """A layer or chain to examine; only its norms, unless the `whole` is asked for."""

    name: str
    modules: tuple[nn.Module, ...]
    shapes: tuple[Shape, ...]
    whole: bool

    def run(self, request: Request) -> Findings:
        """Examine it here and now; with sharded weights, on all ranks at once."""
        modules = [gathered(module) for module in self.modules]
        return examine(modules, self.shapes, request, whole=self.whole)

    def cost(self) -> float:
        """About what one application costs."""
        weights = sum(p.numel() for module in self.modules for p in module.parameters())
        return weights * sum(prod(shape[1:]) for shape in self.shapes)


def examined(
    jobs: Sequence[Job], request: Request, workers: Workers, steps: Steps
) -> list[Findings]:
    if workers == "ranks":
        return _over_ranks(jobs, request, steps)
    if workers == 1 or len(jobs) < 2:
        return [_told(job, request, steps) for job in jobs]
    return _over_processes(jobs, request, min(workers, len(jobs)), steps)


def _told(job: Job, request: Request, steps: Steps) -> Findings:
    steps.begin(job.name)
    findings = job.run(request)
    steps.done(job.name)
    return findings


def check_workers(workers: Any, model: nn.Module) -> None:
    """Raise unless the work on a model can be divided so."""
    if workers == "ranks":
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                'workers="ranks" shares the layers out over the ranks of torch.distributed, which '
                "is not initialized: call init_process_group in each process (as torchrun's "
                "scripts do), or give a number of processes to start here."
            )
    elif isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f'workers must be a positive number or "ranks", got {workers!r}.')
    if workers != 1 and sharded_modules(model):
        raise ValueError(
            f"workers={workers!r} divides layers that are whole, and {type(model).__name__} is "
            "sharded by fully_shard: audit it with workers=1, on every rank at once."
        )


# --- Processes of our own --------------------------------------------------------------------


def _over_processes(
    jobs: Sequence[Job], request: Request, workers: int, steps: Steps
) -> list[Findings]:
    """The costliest first, so that no process is left with a long one at the end."""
    order = sorted(range(len(jobs)), key=lambda index: -jobs[index].cost())
    found: dict[int, Findings] = {}
    context = get_context("spawn")  # threads of torch do not survive a fork
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        running: dict[Future[Findings | None], int] = {}
        try:
            for index in order:
                while len(running) > workers:  # few at once: each holds a copy of its weights
                    found.update(_finished(running, jobs, request, steps))
                steps.begin(jobs[index].name)
                running[pool.submit(_job_of, _packed(jobs[index], request))] = index
            while running:
                found.update(_finished(running, jobs, request, steps))
        except BrokenProcessPool as error:
            raise RuntimeError(
                f"A process of audit(workers={workers}) died. If the script that calls it has no "
                'line `if __name__ == "__main__":` above its own work, add one, since each process '
                "imports the script; if memory ran out, use fewer workers. Else use workers=1."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[index] for index in range(len(jobs))]


def _finished(
    running: dict[Future[Findings | None], int],
    jobs: Sequence[Job],
    request: Request,
    steps: Steps,
) -> Iterator[tuple[int, Findings]]:
    """What has come in; what could not be sent is done here."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        index = running.pop(future)
        findings = future.result() or jobs[index].run(request)
        steps.done(jobs[index].name)
        yield index, findings


def _packed(job: Job, request: Request) -> bytes:
    """A copy of the job: sent as it is, its weights would be moved into shared memory."""
    try:
        return pickle.dumps((job, request))
    except Exception:  # classes decide themselves what they raise; those jobs are done here
        return b""


def _job_of(packed: bytes) -> Findings | None:
    try:
        job, request = pickle.loads(packed)
    except Exception:  # as above: a class may not be importable elsewhere
        return None
    findings: Findings = job.run(request)
    return findings


# --- Ranks -----------------------------------------------------------------------------------


def _over_ranks(jobs: Sequence[Job], request: Request, steps: Steps) -> list[Findings]:
    """Each rank does its share, and all get everything."""
    size, rank = dist.get_world_size(), dist.get_rank()
    order = sorted(range(len(jobs)), key=lambda index: -jobs[index].cost())
    own = {index: _told(jobs[index], request, steps) for index in order[rank::size]}
    shares: list[Any] = [None] * size
    dist.all_gather_object(shares, own)
    found: dict[int, Findings] = {index: one for share in shares for index, one in share.items()}
    return [found[index] for index in range(len(jobs))]


def from_first_rank(make: Callable[[], Any]) -> Any:
    """What the first rank makes, on each of them; an error is raised on all."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer = [make(), None]
        except Exception as error:
            answer = [None, f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise RuntimeError(f"The first rank could not finish the audit: {answer[1]}")
    return answer[0]
