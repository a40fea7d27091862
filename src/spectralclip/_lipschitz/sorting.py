"""Maxima and minima of the same numbers side by side: the numbers in another order.

Activations such as MaxMin are written as `a, b = x.chunk(2, 1)` and
`torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)`, or with slices, views, `amax` and
`amin`, or writes in place. One by one, each of these steps would cost a factor of root two. What
they have in common shows in the entries. Number those of all values that are compared or copied;
then each entry of the result is entry i, or the largest or the smallest of a set G of entries. If
the entries move by `d_i`, a set of two or more with at most w maxima and at most w minima in the
result adds at most

    w ((change of its maximum)^2 + (change of its minimum)^2) <= w sum_(i in G) d_i^2,

since sorting moves vectors closer together, not apart. Thus the square of the result's change is at
most `sum_i c_i d_i^2`, where `c_i` adds up the weights w of the sets that hold i, and how often i
itself is in the result. For MaxMin all `c_i` are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from spectralclip._lipschitz.flow import Flow, Node, Ref, leaves, made
from spectralclip._lipschitz.operations import refusal
from spectralclip._lipschitz.rules import uses

# Operations that copy entries of one argument, of that name, and make no others.
COPIES = {
    **dict.fromkeys(("view", "_unsafe_view", "alias", "detach", "lift_fresh", "clone"), "self"),
    **dict.fromkeys(("t", "transpose", "permute", "flip", "squeeze", "unsqueeze"), "self"),
    **dict.fromkeys(("_to_copy", "roll", "rot90", "select", "slice", "unbind"), "self"),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "diagonal"), "self"),
    **dict.fromkeys(("split", "split_with_sizes", "expand", "repeat", "unfold"), "self"),
    **dict.fromkeys(("unsafe_split", "unsafe_split_with_sizes"), "self"),
    **dict.fromkeys(("index", "index_select", "gather", "take"), "self"),
    **dict.fromkeys(("cat", "stack"), "tensors"),
    "copy": "src",
}
_JOINS = ("cat", "stack", "written", "output")
_OF_TWO = {"maximum": "max", "fmax": "max", "minimum": "min", "fmin": "min"}
_ALONG_AXES = {"max": "max", "amax": "max", "min": "min", "amin": "min"}


def with_sorted(flow: Flow) -> Flow:
    """The flow with maxima and minima of the same numbers, side by side, as one operation.

    Where all parts of one value are put together again, that becomes one operation as well.
    """
    extremes = {node.index: kind for node in flow.nodes if (kind := _extreme(node, flow))}
    # The nodes that hold the entries of which a node consists: its own, unless it copies others.
    owners: list[frozenset[int]] = []
    nodes, needed = list(flow.nodes), flow.needed()
    for node in flow.nodes:
        read = (owners[source] for source in node.inputs)
        held = frozenset[int]().union(*read) if _copies(node, flow) else frozenset({node.index})
        joins = node.operation in _JOINS and len(node.inputs) > 1
        if joins and node.index in needed and not refusal(node, flow):
            entries = _Entries(flow, owners)
            if (found := _as_sorted(node, entries, extremes)) is not None:
                nodes[node.index], held = found, frozenset({node.index})
            elif (found := _as_permuted(node, entries, held)) is not None:
                nodes[node.index] = found
        owners.append(held)
    return flow._replace(nodes=nodes)


def _copies(node: Node, flow: Flow) -> bool:
    data = COPIES.get(node.operation) if node.module is None else None
    if data is None or not all(isinstance(leaf, Ref) for leaf in leaves(node.argument(data))):
        return False
    return not refusal(node, flow)


def _as_sorted(node: Node, entries: _Entries, extremes: Mapping[int, str]) -> Node | None:
    if len(set(extremes.values())) < 2:
        return None
    parts = list(_parts(node, entries.flow))
    reached = frozenset[int]().union(*(entries.owners[part] for part in parts))
    if len({extremes[owner] for owner in reached if owner in extremes}) < 2:
        return None
    counts, sizes = _counts(entries, parts, extremes)
    factors = {
        source: math.sqrt(float(counts[start:end].max()))
        for source, (start, end) in entries.ranges.items()
        if bool(counts[start:end].any())
    }
    note = "sorted in pairs" if sizes == {2} else "sorted in groups"
    kwargs = {"factors": list(factors.values()), "note": note}
    refs = tuple(Ref(source) for source in factors)
    # Constants beside the parts, drawn at random or not, have no say in distances.
    how: dict[str, Any] = {"function": None, "random": False}
    return replace(node, operation="maximum + minimum", args=refs, kwargs=kwargs, **how)


def _as_permuted(node: Node, entries: _Entries, held: frozenset[int]) -> Node | None:
    """All parts of one value, put together again."""
    if len(held) > 1 or held == {node.index}:
        return None
    for part in node.inputs:
        entries.of(part)
    order = entries.copied(node).long()
    if not torch.equal(order.flatten().sort().values, torch.arange(entries.count, device="cpu")):
        return None
    (source,) = held
    args, function = (Ref(source), order.to(node.device)), torch.ops.aten.take.default
    return replace(node, operation="permuted", args=args, kwargs={}, function=function)


def _parts(node: Node, flow: Flow) -> Iterator[int]:
    """The nodes whose entries are side by side in a node, each entry at most once.

    What is put together in several steps, or written in place, is taken apart into all that is in
    it.
    """
    waiting = uses((node.args, node.kwargs))
    while waiting:
        part = flow.nodes[index := waiting.pop()]
        if part.operation in _JOINS and not refusal(part, flow):
            waiting.extend(uses((part.args, part.kwargs)))
        else:
            yield index


def _extreme(node: Node, flow: Flow) -> str | None:
    """Whether each entry of a node is the largest of some entries, or the smallest."""
    if node.operation == "aminmax":
        kind = ("min", "max")[node.item or 0]
    else:
        kind = _OF_TWO.get(node.operation) or _ALONG_AXES.get(node.operation, "")
    compared = ("self", "other") if node.operation in _OF_TWO else ("self",)
    plain = node.module is None and all(isinstance(node.argument(name), Ref) for name in compared)
    return kind if kind and plain and not refusal(node, flow) else None


def _counts(
    entries: _Entries, parts: Sequence[int], extremes: Mapping[int, str]
) -> tuple[Tensor, set[int]]:
    """The weight of each entry in a result, and how many entries the sets in it have."""
    used = torch.cat([entries.of(part).flatten() for part in parts]).long()
    used = torch.bincount(used, minlength=entries.count)
    sets: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for owner, (start, end) in list(entries.ranges.items()):
        if owner in extremes:
            members, times = entries.compared(owner), used[start:end].clone()
            used[start:end] = 0  # what counts are the entries that it compares
            none = torch.zeros_like(times)
            maxima, minima = (times, none) if extremes[owner] == "max" else (none, times)
            sets.setdefault(members.shape[1], []).append((members, maxima, minima))
    counts = torch.cat([used, used.new_zeros(entries.count - len(used))])
    for same_size in sets.values():
        members, maxima, minima = (torch.cat(column) for column in zip(*same_size, strict=True))
        _add_weights(counts, members, maxima, minima)
    return counts, set(sets)


def _add_weights(counts: Tensor, members: Tensor, maxima: Tensor, minima: Tensor) -> None:
    """Add the weights of sets, one a row, of which a result has so many maxima and minima."""
    members, place = _distinct(members.sort(dim=1).values, len(counts))
    none = torch.zeros(len(members), dtype=torch.long, device="cpu")
    most, least = (none.index_add(0, place, times) for times in (maxima, minima))
    first = torch.ones_like(members, dtype=torch.bool)  # whether an entry was not in its row before
    first[:, 1:] = members[:, 1:] != members[:, :-1]
    # Of one entry alone, maximum and minimum are the same number.
    several = first.sum(dim=1) > 1
    weights = torch.where(several, torch.maximum(most, least), most + least)
    counts.index_add_(0, members.flatten(), (weights[:, None] * first).flatten())


def _distinct(members: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The rows that differ, and which of these each row is; all numbers are below `count`."""
    if members.shape[1] != 2:
        rows: tuple[Tensor, Tensor] = torch.unique(members, dim=0, return_inverse=True)
        return rows
    # As single numbers, 800,000 pairs take 0.05 s, and as rows 3.7 s.
    found, place = torch.unique(members[:, 0] * count + members[:, 1], return_inverse=True)
    return torch.stack([found // count, found % count], dim=1), place


@final
class _Entries:
    """The entries of nodes by number, each as often as it is copied.

    Numbers are kept as float64, which every operation that copies takes.
    """

    def __init__(self, flow: Flow, owners: Sequence[frozenset[int]]) -> None:
        self.flow = flow
        self.count = 0
        self.ranges: dict[int, tuple[int, int]] = {}  # of the numbers of a node's own entries
        self.owners = owners
        self._known: dict[int, Tensor] = {}

    def of(self, index: int) -> Tensor:
        """The numbers of a node's entries, in its shape."""
        waiting, region = [index], set[int]()
        while waiting:
            if (one := waiting.pop()) not in region and one not in self._known:
                region.add(one)
                copies = self.owners[one] != {one}
                waiting.extend(self.flow.nodes[one].inputs if copies else ())
        for one in sorted(region):
            node, copies = self.flow.nodes[one], self.owners[one] != {one}
            self._known[one] = self.copied(node) if copies else self._own(node)
        return self._known[index]

    def copied(self, node: Node) -> Tensor:
        """The same for one that copies nodes which are numbered already."""
        args, kwargs = tree_map_only(Tensor, Tensor.cpu, (node.args, node.kwargs))
        args, kwargs = tree_map_only(Ref, lambda ref: self._known[ref.node], (args, kwargs))
        return made(node, args, kwargs)

    def compared(self, index: int) -> Tensor:
        """The numbers of the entries among which each of a node is the largest or smallest."""
        node = self.flow.nodes[index]
        if node.operation in _OF_TWO:
            both = [self.of(node.argument(name).node) for name in ("self", "other")]
            flat = [numbers.expand(node.shape).flatten() for numbers in both]
            return torch.stack(flat, dim=1).long()
        numbers = self.of(node.argument("self").node)
        numbers = numbers.reshape(numbers.shape or (1,))
        dims = node.argument("dim")
        dims = [dims] if isinstance(dims, int) else dims or range(numbers.ndim)
        gone = [dim % numbers.ndim for dim in dims]
        left = [dim for dim in range(numbers.ndim) if dim not in gone]
        rows = math.prod(node.shape)
        return numbers.permute(*left, *gone).reshape(rows, -1).long()

    def _own(self, node: Node) -> Tensor:
        start, self.count = self.count, self.count + math.prod(node.shape)
        self.ranges[node.index] = start, self.count
        numbers = torch.arange(start, self.count, dtype=torch.float64, device="cpu")
        return numbers.reshape(node.shape)
