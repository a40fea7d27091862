"""The book that is kept while a flow is recorded: which tensor is which node.

Tensors are told apart as objects. Where one of them is written into, all others in the same
memory change as well: each write is noted with the memory, and who reads an alias afterwards reads
a mixture of what it was and what has been written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from spectralclip._lipschitz.flow import ROOT, SWITCH, Flow, Node, Ref, joined, leaves, piece
from spectralclip._lipschitz.memory import Memories, entries_apart, hides_tensors
from spectralclip._models import tensors_in

TOKEN, RANDOM = "token", "random"  # what the numbers of a constant come from
UNSEEN = "its memory was written to, or is read, in a way that cannot be followed"
_NUMBER = "a number is read out of a tensor, and what becomes of it cannot be followed"
HIDDEN = "an object that is no container holds tensors, which cannot be followed"
_NO_NUMBERS = "outputs that are not floating-point numbers are left out"


@final
class Ledger:
    """Nodes, and the tensors that they stand for.

    Attributes:
        flow: What has been recorded.
        memories: Who has written where.
        path: The names of the modules at work, the innermost last.
        inside: Of how many calls that count as one operation the inside is running.
    """

    def __init__(self, names: Mapping[nn.Module, str], lasting: Iterable[Tensor]) -> None:
        self._nodes: list[Node] = []
        self.flow = Flow(self._nodes, dict(names), [], [], [])
        self.memories = Memories()
        self.path = [""]
        self.inside = 0
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._lasting = {tensor.untyped_storage()._cdata for tensor in lasting}
        self._made: Any = WeakIdKeyDictionary()  # tensor: (node or None, writes before that)
        self._tags: Any = WeakIdKeyDictionary()
        self._size = 0
        self.add("inputs", ((), {}), torch.empty(0))

    @property
    def where(self) -> str:
        """The name of the module at work."""
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
        """Note that a number is read out of a tensor: as a switch, or to go its own ways."""
        dtype = self._nodes[ref.node].dtype
        if dtype.is_floating_point or dtype.is_complex:
            self.escape("item")
        else:
            self.decision()

    def decision(self) -> None:
        """Note that the way of the model depends on its input."""
        self.flow.remarks.append((self.where, SWITCH))

    def escape(self, operation: str) -> None:
        """Note that numbers leave torch."""
        self.flow.escapes.append((self.where, operation, _NUMBER))

    # --- Tensors ---

    def read(self, tensor: Tensor) -> int | None:
        """The node of a tensor as it is now; None for a constant."""
        known, before = self._made.get(tensor, (None, None))
        writes, complete = self.memories.since(tensor, before or 0)
        if before is not None and not writes:
            return known  # type: ignore[no-any-return]
        if before is None and self.memories.filled(tensor) and not complete:
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
        self._made[tensor] = (index, self.memories.count(tensor))

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
        """Say what the numbers of constants come from."""
        for tensor in tensors:
            self._tags[tensor] = tags

    def tags_of(self, arguments: Any) -> frozenset[str]:
        """What the numbers of the constants among arguments come from."""
        found: frozenset[str] = frozenset()
        for leaf in leaves(arguments):
            if isinstance(leaf, Tensor):
                found |= self._tags.get(leaf, frozenset())
        return found
