"""What a forward pass did to the numbers of its input: a graph of operations, to be replayed.

Nodes stand for tensors that depend on the input, in the order in which they were made. Whatever
else an operation read (weights, masks, numbers) is a constant of its node.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from spectralclip._common import Shape

SWITCH = "a decision is read out of a tensor: the bound is that of the way taken"
ROOT = 0  # the index of the node that holds all inputs, side by side


@final
@dataclass(frozen=True)
class Ref:
    """The place of a node's value among the arguments of an operation."""

    node: int


@final
@dataclass(eq=False)
class Node:
    """A tensor that depends on the input, and the operation that made it."""

    index: int  # its place in the order
    operation: str  # the operation's name, without the underscore of one that works in place
    where: str  # the name of the module at work, "" for the model itself
    # Positional arguments; a `Ref` stands for a tensor that depends on the input
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: Shape
    dtype: torch.dtype
    device: torch.device
    # What makes it from its arguments; None where it cannot be replayed
    function: Callable[..., Any] | None = None
    # Its place among the tensors that the operation made, where those were several
    item: int | None = None
    # The module, where a call of a known module counts as one operation
    module: nn.Module | None = None
    random: bool = False  # whether a constant among the arguments was drawn at random
    # Names of the parameters and buffers that constants among the arguments were made of; those of
    # the module itself are not among them
    weights: frozenset[str] = frozenset()
    reason: str = ""  # why nothing is known of it, where the recorder has given up
    inputs: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        refs = [ref.node for ref in leaves((self.args, self.kwargs)) if isinstance(ref, Ref)]
        self.inputs = tuple(dict.fromkeys(refs))

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by the name that the operation's schema gives it."""
        if name in self.kwargs:
            return self.kwargs[name]
        for place, (own, otherwise) in enumerate(signature(self.function)):
            if own == name:
                return self.args[place] if place < len(self.args) else otherwise
        return default

    def reads(self, name: str) -> bool:
        return any(isinstance(leaf, Ref) for leaf in leaves(self.argument(name)))


class Flow(NamedTuple):
    """All that a forward pass did to its input."""

    # In the order of their making; the first holds all inputs, the last all outputs
    nodes: Sequence[Node]
    names: dict[nn.Module, str]
    # Places where a number was read out of a tensor, and why that matters
    remarks: list[tuple[str, str]]
    # Places where numbers left torch, so that they cannot be followed
    escapes: list[tuple[str, str, str]]
    embedded: list[str]  # names of operations that turned integer inputs into numbers
    # Parameters and buffers of which numbers were read, which decide or are constants; and where
    numbers: list[tuple[str, str]]

    @property
    def decisions(self) -> list[str]:
        """The modules that decide by their input which way to go, "" for the model itself."""
        return list(dict.fromkeys(where for where, why in self.remarks if why == SWITCH))

    def needed(self) -> set[int]:
        """The nodes on which the output depends."""
        return self._before(len(self.nodes) - 1, set())

    def between(self, base: int, end: int) -> list[Node]:
        """The nodes after `base` that lead up to `end`, in order; all ways must begin at `base`."""
        return [self.nodes[index] for index in sorted(self._before(end, {base}) - {base})]

    def _before(self, end: int, found: set[int]) -> set[int]:
        """The nodes that lead up to one, itself included, and those that were found before."""
        queue = [end]
        while queue:
            index = queue.pop()
            if index not in found:
                found.add(index)
                queue.extend(self.nodes[index].inputs)
        return found


def signature(function: Any) -> Iterator[tuple[str, Any]]:
    """The names of a function's arguments, and their defaults."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        for argument in schema.arguments:
            yield argument.name, argument.default_value
    elif isinstance(function, FunctionType):
        for name, parameter in inspect.signature(function).parameters.items():
            yield name, None if parameter.default is parameter.empty else parameter.default


def leaves(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


@final
class Replay(nn.Module):
    """Operations of a flow as a layer of their own: from the value of one node to another's.

    Constants are its buffers, and modules its submodules, so that it can be evaluated in any
    precision like other layers. It acts on batches of values, row by row.
    """

    def __init__(self, base: Node, nodes: Sequence[Node], single: bool = False) -> None:
        super().__init__()
        self._base, self._nodes, self._single = base.index, list(nodes), single
        self._places: dict[int, str] = {}
        for node in self._nodes:
            for leaf in leaves((node.args, node.kwargs)):
                if isinstance(leaf, Tensor) and id(leaf) not in self._places:
                    self._places[id(leaf)] = name = f"constant_{len(self._places)}"
                    self.register_buffer(name, leaf.detach())
        for module in dict.fromkeys(node.module for node in self._nodes if node.module):
            self.add_module(f"module_{len(self._modules)}", module)

    def forward(self, x: Tensor) -> Tensor:
        """The values of the last node for a batch of values of the base."""
        return torch.stack([self._row(row) for row in x])

    def _row(self, row: Tensor) -> Tensor:
        values = {self._base: row[None] if self._single else row}
        for node in self._nodes:
            values[node.index] = self._made(node, values)
        result = values[self._nodes[-1].index]
        result = result[0] if self._single else result
        return result if result.ndim else result[None]

    def _made(self, node: Node, values: dict[int, Tensor]) -> Tensor:
        return made(node, *self._filled((node.args, node.kwargs), values))

    def _filled(self, arguments: Any, values: dict[int, Tensor]) -> Any:
        """The arguments with values for the nodes, and constants in this precision."""
        arguments = tree_map_only(
            Tensor, lambda constant: getattr(self, self._places[id(constant)]), arguments
        )
        return tree_map_only(Ref, lambda ref: values[ref.node], arguments)

    def extra_repr(self) -> str:
        return " -> ".join(operations(self._nodes))


def made(node: Node, args: Any, kwargs: Any) -> Tensor:
    """The value of a node with tensors for its inputs, whatever their precision and strides."""
    if node.module is not None:
        output: Tensor = node.module(*args, **kwargs)
        return output
    given = replace(node, args=args, kwargs=kwargs).argument
    if node.operation == "_to_copy":  # of precision, which is not for it to choose here
        return given("self").clone()  # type: ignore[no-any-return]
    if node.operation in ("view", "_unsafe_view"):  # which strides may not allow
        return given("self").reshape(node.shape)  # type: ignore[no-any-return]
    if node.operation == "copy":  # which torch has no derivative of
        return given("src").expand(node.shape).clone()  # type: ignore[no-any-return]
    if node.operation == "embedding":  # whose other arguments change its derivative alone
        return given("weight")[given("indices")]  # type: ignore[no-any-return]
    assert node.function is not None, f"{node.operation} cannot be replayed"
    result = node.function(*args, **kwargs)
    return result if node.item is None else leaves(result)[node.item]  # type: ignore[no-any-return]


def piece(inputs: Tensor, start: int, shape: Shape) -> Tensor:
    """One input out of all, which lie side by side."""
    return inputs[start : start + math.prod(shape)].reshape(shape)


def joined(outputs: Sequence[Tensor]) -> Tensor:
    return torch.cat([output.flatten() for output in outputs])


def operations(nodes: Sequence[Node]) -> Iterator[str]:
    """The names of operations for people to read."""
    for node in nodes:
        yield type(node.module).__name__ if node.module is not None else node.operation


def alike(first: Flow, second: Flow) -> bool:
    """Whether two flows are the same operations with the same constants."""
    return (
        len(first.nodes) == len(second.nodes)
        and (first.escapes, first.embedded) == (second.escapes, second.embedded)
        and all(_alike(*pair) for pair in zip(first.nodes, second.nodes, strict=True))
    )


def _alike(first: Node, second: Node) -> bool:
    names = ("operation", "where", "shape", "dtype", "function", "item", "module", "random")
    if any(getattr(first, name) != getattr(second, name) for name in (*names, "reason")):
        return False
    (ours, structure), (theirs, other) = (
        tree_flatten((node.args, node.kwargs)) for node in (first, second)
    )
    return structure == other and all(map(_equal, ours, theirs))


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        same = (first.shape, first.dtype) == (second.shape, second.dtype)
        return first is second or (same and torch.equal(first, second))
    return type(first) is type(second) and bool(first == second)
