"""Who has written into which memory, so that aliases of a tensor are not taken for what they were.

Views of a tensor share its memory. The recorder knows tensors as objects, and an object does not
show that it has changed through another one; the list of writes of its memory does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from spectralclip._models import tensors_in


class Write(NamedTuple):
    """One write: the node of what was written, None for a constant; whether it filled all."""

    node: int | None
    whole: bool


@final
@dataclass
class _Memory:
    """The memory of some tensors."""

    alive: Any  # tells whether it still exists; as long as it is held, the address is not reused
    filled: bool  # whether it was allocated for a tensor that depends on the input
    writes: list[Write] = field(default_factory=list)  # in order


@final
class Memories:
    """The memories that hold, or may hold, something that depends on the input."""

    def __init__(self) -> None:
        self._by_address: dict[int, _Memory] = {}

    def fill(self, tensor: Tensor) -> None:
        """Note that a tensor that depends on the input lies there."""
        if self._of(tensor) is None:
            self._start(tensor, filled=True)

    def write(self, tensor: Tensor, node: int | None) -> None:
        """Note that a tensor was written into."""
        memory = self._of(tensor) or self._start(tensor, filled=False)
        size = tensor.untyped_storage().nbytes()
        whole = tensor.numel() * tensor.element_size() == size and entries_apart(tensor)
        memory.writes.append(Write(node, whole))

    def known(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is among them."""
        return self._of(tensor) is not None

    def filled(self, tensor: Tensor) -> bool:
        """Whether it was allocated for a tensor that depends on the input."""
        memory = self._of(tensor)
        return memory is not None and memory.filled

    def count(self, tensor: Tensor) -> int:
        """How many writes there have been."""
        memory = self._of(tensor)
        return len(memory.writes) if memory is not None else 0

    def since(self, tensor: Tensor, count: int) -> tuple[list[Write], bool]:
        """The writes that matter after the first `count`; whether nothing older is left."""
        memory = self._of(tensor)
        writes = memory.writes[count:] if memory is not None else []
        filling = [place for place, write in enumerate(writes) if write.whole]
        return (writes[filling[-1] :], True) if filling else (writes, False)

    def _of(self, tensor: Tensor) -> _Memory | None:
        address = tensor.untyped_storage()._cdata
        memory = self._by_address.get(address)
        if memory is not None and memory.alive.expired():
            del self._by_address[address]
            return None
        return memory

    def _start(self, tensor: Tensor, filled: bool) -> _Memory:
        storage = tensor.untyped_storage()
        memory = _Memory(StorageWeakRef(storage), filled)
        self._by_address[storage._cdata] = memory
        return memory


def entries_apart(tensor: Tensor) -> bool:
    """Whether no two entries of a tensor surely share a place in memory."""
    reach = 0
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(axis for axis in axes if axis[1] > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def places(tensor: Tensor) -> Tensor:
    """Where in its memory each entry of a tensor lies."""
    found = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found = found[..., None] + stride * torch.arange(size)
    return found


def among(known: Tensor, wanted: Tensor) -> Tensor | None:
    """The index of each wanted place among those known, flat; None if one is not among them."""
    if wanted.numel() == 0:
        return torch.zeros_like(wanted)
    order = known.flatten().sort()
    if order.values.numel() == 0:
        return None
    found = torch.searchsorted(order.values, wanted).clamp(max=order.values.numel() - 1)
    return order.indices[found] if torch.equal(order.values[found], wanted) else None


def same_place(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory, in the same order."""
    return (
        first.untyped_storage()._cdata == second.untyped_storage()._cdata
        and first.storage_offset() == second.storage_offset()
        and (first.shape, first.stride()) == (second.shape, second.stride())
        and first.dtype == second.dtype
    )


def written_by(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that an operation writes into, as its schema says."""
    schema = getattr(func, "_schema", None)
    found: list[Tensor] = []
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            found.extend(tensors_in(given))
    return found


def out_of_place(func: Any) -> Any:
    """The operation that returns what this one writes into its first argument, if there is one."""
    packet = getattr(torch.ops.aten, func.overloadpacket.__name__.rstrip("_"), None)
    return getattr(packet, func._overloadname, None)


_DEPTH = 4  # of objects in objects


def hides_tensors(value: Any, depth: int = _DEPTH) -> bool:
    """Whether tensors are in a value that nobody finds who looks into containers alone."""
    if isinstance(value, (Tensor, nn.Module, type)) or depth == 0:
        return False
    if isinstance(value, Mapping):
        return any(hides_tensors(item, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return any(hides_tensors(item, depth - 1) for item in value)
    attributes = _attributes(value)
    if dataclasses.is_dataclass(value):  # its fields are found
        return any(hides_tensors(item, depth - 1) for item in attributes)
    return any(isinstance(item, Tensor) or _holds(item, depth - 1) for item in attributes)


def _holds(value: Any, depth: int) -> bool:
    """Whether there are tensors in a value at all, in sight or not."""
    if isinstance(value, (list, tuple, set, Mapping)):
        items = value.values() if isinstance(value, Mapping) else value
        return any(isinstance(item, Tensor) or _holds(item, depth - 1) for item in items)
    return hides_tensors(value, depth)


def _attributes(value: Any) -> list[Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    named = [getattr(value, name, None) for name in slots if isinstance(name, str)]
    return [*getattr(value, "__dict__", {}).values(), *named]
