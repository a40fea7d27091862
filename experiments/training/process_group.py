"""The processes that train one model together, as `torchrun` starts them; most often one alone."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

# While one process takes norms or writes, the others wait.
PATIENCE = timedelta(hours=6)


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train together.

    Attributes:
        rank: Its number, from 0.
        size: How many there are.
        device: Of this one.
    """

    rank: int
    size: int
    device: torch.device

    @classmethod
    def joined(cls, device: str) -> ProcessGroup:
        """Join the other processes, where `torchrun` has started some."""
        if not (dist.is_available() and dist.is_torchelastic_launched()):
            return cls(0, 1, torch.device(device))
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            backend = "nccl" if device.startswith("cuda") else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
            atexit.register(cls.leave)  # a process may train one model after the other
        return cls(dist.get_rank(), dist.get_world_size(), torch.device(device))

    @staticmethod
    def leave() -> None:
        """Leave the other processes."""
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    def share(self, *batch: Tensor) -> list[Tensor]:
        """This process's part of a batch."""
        return [tensor.tensor_split(self.size)[self.rank] for tensor in batch]

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, the same in each."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def with_common_statistics(self, model: nn.Module) -> nn.Module:
        """The model, with batch norms that see the whole batch, where torch has such: on GPUs.

        On CPUs each process has the statistics of its own share.
        """
        if self.size == 1 or self.device.type != "cuda":
            return model
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model, with gradients averaged over the processes."""
        return model if self.size == 1 else DistributedDataParallel(model)

    def agree_on_buffers(self, model: nn.Module) -> None:
        """Hand the first process's running statistics to the others, who saw other images."""
        for buffer in model.buffers() if self.size > 1 else ():
            dist.broadcast(buffer, 0)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()
