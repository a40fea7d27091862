"""Messages between the processes that train one model together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

# Every tensor of a message begins at a multiple of this, so that it can be read in its own dtype.
_ALIGNMENT = 16
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class ProcessGroup:
    """The processes that train one model, `size` of them, numbered from zero; this is `rank`.

    Tensors travel as bytes, many in one message, so that they arrive bit for bit.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group = dist.group.WORLD if group is None else group
        # For each, its number among all processes.
        self.ranks: list[int] = dist.get_process_group_ranks(self._group)
        self.rank, self.size = dist.get_rank(self._group), len(self.ranks)
        # Gloo exchanges what lies in main memory; others want what lies on their devices.
        self._device = torch.device("cpu") if dist.get_backend(self._group) == "gloo" else device

    def table(self, row: Sequence[int]) -> list[list[int]]:
        """One row of numbers from each, of the same length everywhere."""
        mine = torch.tensor(row, dtype=torch.int64, device=self._device)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(rows, mine, group=self._group)
        table: list[list[int]] = torch.stack(rows).tolist()
        return table

    def objects(self, value: object) -> list[Any]:
        """One object from each; costly."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, tensors: Mapping[int, Sequence[Tensor]]) -> None:
        """Send tensors, given by sender, to all others, whose own are overwritten."""
        messages = {}
        for sender, sent in tensors.items():
            if sender == self.rank:
                messages[sender] = self._packed(sent)
            else:
                messages[sender] = self._blank(sum(map(_room, sent)))
        waits = [
            dist.broadcast(message, self.ranks[sender], group=self._group, async_op=True)
            for sender, message in messages.items()
        ]
        for wait in waits:
            if wait is not None:
                wait.wait()
        for sender, message in messages.items():
            if sender != self.rank:
                _unpack(message, tensors[sender])

    def deliver(
        self, outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[Sequence[Tensor]]
    ) -> None:
        """Send tensors to each process, and overwrite others by what comes from each."""
        messages = [self._packed(tensors) for tensors in outgoing]
        rooms = [sum(map(_room, tensors)) for tensors in incoming]
        received = self._blank(sum(rooms))
        dist.all_to_all_single(
            received, torch.cat(messages), rooms, [len(m) for m in messages], group=self._group
        )
        for tensors, message in zip(incoming, received.split(rooms), strict=True):
            _unpack(message, tensors)

    def _blank(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def _packed(self, tensors: Sequence[Tensor]) -> Tensor:
        message = self._blank(sum(map(_room, tensors))).zero_()
        for part, tensor in _parts(message, tensors):
            part.copy_(tensor.detach())
        return message


def _room(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _parts(message: Tensor, tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each tensor beside its place in the message, seen in its dtype and shape."""
    places = message.split(list(map(_room, tensors))) if tensors else ()
    return [
        (place[: t.numel() * t.element_size()].view(t.dtype).view(t.shape), t)
        for place, t in zip(places, tensors, strict=True)
    ]


def _unpack(message: Tensor, tensors: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for part, tensor in _parts(message, tensors):
            tensor.copy_(part)


def fingerprints(tensors: Sequence[Sequence[Tensor]]) -> list[int]:
    """A number for each list of tensors that all but surely changes with any bit of them."""
    sums = [torch.stack([_sum_of_bits(t) for t in part]).sum().cpu() for part in tensors if part]
    return torch.stack(sums).tolist() if sums else []


def _sum_of_bits(tensor: Tensor) -> Tensor:
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()])
    return bits.sum(dtype=torch.int64)


def portable(value: Any) -> Any:
    """A state with its tensors, at any depth, as copies in main memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(portable(part) for part in value)
    return value


def digest(text: str) -> int:
    """A number that stands for a text, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
