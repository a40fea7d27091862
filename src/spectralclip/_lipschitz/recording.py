"""What is recorded while a model runs: which tensor is which node, and who wrote into which memory.

Tensors are told apart as objects. Where one of them is written into, all others in the same
memory change as well, and an object does not show that it has changed through another one: each
write is noted with the memory, and who reads an alias afterwards reads a mixture of what it was and
what has been written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from spectralclip._lipschitz.flow import ROOT, SWITCH, Flow, Node, Ref, joined, leaves, piece
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

    def since(self, count: int) -> tuple[list[Write], bool]:
        """The writes that matter after the first `count`; whether nothing older is left."""
        writes = self.writes[count:]
        filling = [place for place, write in enumerate(writes) if write.whole]
        return (writes[filling[-1] :], True) if filling else (writes, False)


_ELSEWHERE = _Memory(None, False)  # where nothing depends on the input


@final
class Memories:
    """The memories that hold, or may hold, something that depends on the input."""

    def __init__(self) -> None:
        self._by_address: dict[int, _Memory] = {}

    def fill(self, tensor: Tensor) -> None:
        """Note that a tensor that depends on the input lies there."""
        if not self.known(tensor):
            self._start(tensor, filled=True)

    def write(self, tensor: Tensor, node: int | None) -> None:
        memory = self.of(tensor) if self.known(tensor) else self._start(tensor, filled=False)
        size = tensor.untyped_storage().nbytes()
        whole = tensor.numel() * tensor.element_size() == size and entries_apart(tensor)
        memory.writes.append(Write(node, whole))

    def known(self, tensor: Tensor) -> bool:
        return self.of(tensor) is not _ELSEWHERE

    def of(self, tensor: Tensor) -> _Memory:
        address = tensor.untyped_storage()._cdata
        memory = self._by_address.get(address, _ELSEWHERE)
        if memory is not _ELSEWHERE and memory.alive.expired():
            del self._by_address[address]
            return _ELSEWHERE
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
    return first.dtype == second.dtype and first.is_set_to(second)


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


def hides_tensors(value: Any, depth: int = _DEPTH, hidden: bool = False) -> bool:
    """Whether tensors are in a value that nobody finds who looks into containers alone.

    What is in an object that is no container is `hidden` as a whole; the fields of a dataclass are
    found.
    """
    if isinstance(value, Tensor):
        return hidden
    if isinstance(value, (nn.Module, type)) or depth == 0:
        return False
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        items = list(value)
    else:
        items, hidden = _attributes(value), hidden or not dataclasses.is_dataclass(value)
    return any(hides_tensors(item, depth - 1, hidden) for item in items)


def _attributes(value: Any) -> list[Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    named = [getattr(value, name, None) for name in slots if isinstance(name, str)]
    return [*getattr(value, "__dict__", {}).values(), *named]


# What the numbers of a constant come from; a parameter or buffer has its name behind the last.
TOKEN, RANDOM, WEIGHT = "token", "random", "weight "
UNSEEN = "its memory was written to, or is read, in a way that cannot be followed"
_NUMBER = "a number is read out of a tensor, and what becomes of it cannot be followed"
HIDDEN = "an object that is no container holds tensors, which cannot be followed"
_NO_NUMBERS = "outputs that are not floating-point numbers are left out"


@final
class Recording:
    """Nodes, and the tensors that they stand for."""

    def __init__(self, names: Mapping[nn.Module, str], lasting: Mapping[str, Tensor]) -> None:
        self._nodes: list[Node] = []
        self.flow = Flow(self._nodes, dict(names), [], [], [], [])
        self.memories = Memories()  # who has written where
        self.path = [""]  # the names of the modules at work, the innermost last
        self.inside = 0  # of how many calls that count as one operation the inside is running
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        # The model's parameters and buffers by the memory that they lie in
        self._lasting = dict[int, frozenset[str]]()
        for name, tensor in lasting.items():
            address = tensor.untyped_storage()._cdata
            self._lasting[address] = self._lasting.get(address, frozenset()) | {WEIGHT + name}
        self._made: Any = WeakIdKeyDictionary()  # tensor: (node or None, writes before that)
        self._tags: Any = WeakIdKeyDictionary()
        self._size = 0
        self.add("inputs", ((), {}), torch.empty(0))

    @property
    def where(self) -> str:
        return self.path[-1]

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Do not look inside what runs in the block."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    # --- Inputs and outputs ---

    def source(self, tensor: Tensor) -> None:
        """Let a tensor be an input: a piece of the one node that holds them all."""
        start, self._size = self._size, self._size + tensor.numel()
        self._nodes[ROOT].shape = (self._size,)
        args = (Ref(ROOT), start, tuple(tensor.shape))
        self.put(tensor, self.add("input", (args, {}), tensor, function=piece))

    def close(self, output: Any) -> Flow:
        """The flow, once the model has returned."""
        tensors = list(tensors_in(output))
        if not tensors:
            why = f"the model returns {type(output).__name__}, in which no tensor is found"
            self.flow.escapes.append(("", "output", why))
        elif hides_tensors(output):
            self.flow.escapes.append(("", "output", HIDDEN))
        ends = [index for tensor in tensors if (index := self.read(tensor)) is not None]
        smooth = [index for index in ends if self._nodes[index].dtype.is_floating_point]
        if len(smooth) < len(ends):
            self.flow.remarks.append(("", _NO_NUMBERS))
        refs = [Ref(index) for index in smooth]
        self.add("output", ((refs,), {}), torch.empty(0), function=joined)
        return self.flow

    # --- Nodes ---

    def add(self, operation: str, noted: tuple[Any, Any], tensor: Tensor, **how: Any) -> int:
        """A new node for what an operation has made; its index."""
        shape, dtype, device = tuple(tensor.shape), tensor.dtype, tensor.device
        index = len(self._nodes)
        node = Node(index, operation, self.where, *noted, shape, dtype, device, **how)
        self._nodes.append(node)
        return index

    def whole(self, operation: str, noted: tuple[Any, Any], output: Any, **how: Any) -> None:
        """Nodes for all that a call made which counts as one operation."""
        made = list(tensors_in(output))
        for place, tensor in enumerate(made):
            item = place if len(made) > 1 else None
            self.put(tensor, self.add(operation, noted, tensor, item=item, **how))

    def unseen(self, tensor: Tensor) -> int:
        """A node of which nothing is known."""
        return self.add("memory", ((Ref(ROOT),), {}), tensor, reason=UNSEEN)

    def noted(self, arguments: Any) -> Any:
        """Arguments as a node keeps them: references, and constants that nobody else changes."""

        def noted(tensor: Tensor) -> Any:
            index = self.read(tensor)
            if index is not None:
                return Ref(index)
            kept = self.lasts(tensor) and tensor.untyped_storage()._cdata not in self._before
            return tensor.detach() if kept else tensor.detach().clone()

        with self.as_one():
            return tree_map_only(Tensor, noted, arguments)

    def read_out(self, ref: Ref) -> None:
        """Note that an operation reads a number, of which it may make a size or a factor."""
        dtype = self._nodes[ref.node].dtype
        if dtype.is_floating_point or dtype.is_complex:
            self.escape("item")
        else:
            self.decision()

    def read_weights(self, names: Iterable[str]) -> None:
        """Note that numbers are made of these parameters and buffers, which nobody follows."""
        self.flow.numbers.extend((self.where, name) for name in sorted(names))

    def decision(self) -> None:
        self.flow.remarks.append((self.where, SWITCH))

    def escape(self, operation: str) -> None:
        self.flow.escapes.append((self.where, operation, _NUMBER))

    # --- Tensors ---

    def read(self, tensor: Tensor) -> int | None:
        """The node of a tensor as it is now; None for a constant."""
        known, before = self._made.get(tensor, (None, None))
        memory = self.memories.of(tensor)
        writes, complete = memory.since(before or 0)
        if before is not None and not writes:
            return known  # type: ignore[no-any-return]
        if before is None and memory.filled and not complete:
            return self.unseen(tensor)
        older = [] if complete else [known]
        parts = {part for part in (*older, *(w.node for w in writes)) if part is not None}
        if not parts:
            return None
        if not entries_apart(tensor):
            return self.unseen(tensor)
        index = self.add("written", (([Ref(part) for part in sorted(parts)],), {}), tensor)
        self.put(tensor, index)
        return index

    def put(self, tensor: Tensor, index: int | None, write: bool = False) -> None:
        """Let a tensor stand for a node, or for a constant, from now on."""
        if write:
            self.memories.write(tensor, index)
        elif index is not None:
            self.memories.fill(tensor)
        self._made[tensor] = (index, len(self.memories.of(tensor).writes))

    def lasts(self, tensor: Tensor) -> bool:
        """Whether it is, or views, a parameter or a buffer of the model."""
        return tensor.untyped_storage()._cdata in self._lasting

    def before_writing(self, tensor: Tensor) -> None:
        """Keep what a parameter or a buffer is before its first change: nodes refer to it."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._lasting and storage._cdata not in self._before:
            with self.as_one():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self._before[storage._cdata] = whole, whole.clone()

    def put_back(self) -> None:
        """Undo what was written into parameters and buffers."""
        for whole, copy in self._before.values():
            whole.copy_(copy)

    def tag(self, tensors: Iterable[Tensor], tags: frozenset[str]) -> None:
        for tensor in tensors:
            self._tags[tensor] = tags

    def tags_of(self, arguments: Any) -> frozenset[str]:
        """What the numbers of all constants among arguments come from."""
        tensors = [leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor)]
        found = [self._tags.get(tensor, frozenset[str]()) for tensor in tensors]
        found += [self._lasting.get(t.untyped_storage()._cdata, frozenset()) for t in tensors]
        return frozenset[str]().union(*found)
