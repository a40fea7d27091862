"""Running statistics of layers, as the first of several processes has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

from torch import nn

from spectralclip._models import FoundLayer
from spectralclip._training.distributed.process_group import ProcessGroup


@final
class Statistics:
    """The buffers of layers, above all the running statistics of batch norm.

    They may differ from process to process, since each sees data of its own. Those of the first
    process count: `DistributedDataParallel` hands them to the others at the next forward pass,
    and they are what is saved and evaluated.
    """

    def __init__(self, group: ProcessGroup, layers: Iterable[FoundLayer]) -> None:
        self._group = group
        parts = (part for layer in layers for module in layer.modules for part in module.modules())
        self._places: list[tuple[nn.Module, str]] = [
            (part, name)
            for part in dict.fromkeys(parts)
            for name, buffer in part._buffers.items()
            if buffer is not None and buffer.is_floating_point()
        ]

    @property
    def differ(self) -> bool:
        """Whether there are any that may differ."""
        return bool(self._places) and self._group.size > 1

    @contextmanager
    def synchronized(self) -> Iterator[None]:
        """Put the first process's in place of the others' for the block."""
        if not self.differ:
            yield
            return
        own = [part.get_buffer(name) for part, name in self._places]
        copies = [buffer.detach().clone() for buffer in own]
        self._group.broadcast({0: copies})
        try:
            for (part, name), buffer in zip(self._places, copies, strict=True):
                part._buffers[name] = buffer
            yield
        finally:
            for (part, name), buffer in zip(self._places, own, strict=True):
                part._buffers[name] = buffer
